"""Claims of tasks: a late one is void."""

from dataflow.transport.shared_task_queue import TaskOwnership


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
