"""Claims of tasks: a late one is void."""

from dataflow.transport.shared_task_queue import SharedTaskQueue, TaskOwnership


def test_a_task_is_claimed_and_freed():
    ownership = TaskOwnership()
    for number in (0, 5, 10**12):
        ownership.free(number)
        assert ownership.holder(number) is None
        ownership.claim(number, 0)
        assert ownership.holder(number) == 0
        ownership.free(number)
        assert ownership.holder(number) is None
    ownership.close()


def test_a_claim_that_comes_late_claims_no_other_task():
    ownership = TaskOwnership()
    ownership.free(4097)
    ownership.claim(1, 3)  # of a task that was discarded long ago
    assert ownership.holder(4097) is None
    ownership.claim(4097, 2)
    assert ownership.holder(4097) == 2
    ownership.close()
    ownership.close()


def test_workers_are_asked_for_parts_and_remembered_by_their_last_task_side_by_side():
    ownership = TaskOwnership()
    ownership.claim(0, 0)
    ownership.claim(9, 4095)
    for k in range(1, 10):
        ownership.add_asked(k, 10 * k)
        assert sorted(ownership.asked()) == [(part, 10 * part) for part in range(max(1, k - 7), k + 1)]
    assert [ownership.last_claimed(worker) for worker in (0, 1, 4095)] == [0, None, 9]
    ownership.close()


def test_a_worker_that_looks_for_parts_maps_only_memory_in_which_tasks_are():
    queue = SharedTaskQueue(1 << 20)
    queue.open()
    reader = queue.port(0).open()
    first = queue.put(0, 0, [queue.encode([k], is_only_task=False) for k in range(2)], is_only_task=False)
    queue.put(1, 2, [queue.encode([2], is_only_task=False)], is_only_task=False)
    first.ask(2, 1, 2)
    assert [reader.receive().number for _ in range(2)] == [2, 1]
    assert set(reader._memory) == set(queue.writer.memory)
    queue.close()
