"""The memory limit: it bounds what all workers hold together, whichever worker asks, and if one is killed."""

import fcntl
import itertools
import multiprocessing
import os
import random
import signal

import pytest

from dataflow.system.descriptors import passing_to_child, pipe
from dataflow.transport.arena import ArenaFile, MemoryLimit
from tests.support.fakes import METHODS
from tests.support.waits import LIMIT, wait_until

PAGE = 4096


@pytest.fixture
def memory_limit():
    memory_limit = MemoryLimit(10 * PAGE, 3)
    yield memory_limit
    memory_limit.close()


def test_the_sum_of_what_is_held_stays_within_the_limit(memory_limit):
    assert memory_limit.reserve(0, 6 * PAGE)
    assert memory_limit.reserve(1, 4 * PAGE)
    assert not memory_limit.reserve(2, 1)
    assert memory_limit.held() == [6 * PAGE, 4 * PAGE, 0]
    memory_limit.give_back(0, PAGE)
    assert not memory_limit.reserve(2, 2 * PAGE)
    assert memory_limit.reserve(2, PAGE)
    assert memory_limit.held() == [5 * PAGE, 4 * PAGE, PAGE]


def test_one_worker_may_hold_it_all(memory_limit):
    assert memory_limit.reserve(2, 10 * PAGE)


def test_pressure_rises_with_every_refusal_and_with_nothing_else(memory_limit):
    memory_limit.reserve(0, 10 * PAGE)
    before = memory_limit.pressure
    memory_limit.give_back(0, PAGE)
    memory_limit.reserve(1, PAGE)
    assert memory_limit.pressure == before
    memory_limit.reserve(1, 1)
    memory_limit.reserve(2, 1)
    assert memory_limit.pressure == before + 2


def test_closing_gives_every_descriptor_back_at_once():
    before = len(os.listdir("/proc/self/fd"))
    memory_limit = MemoryLimit(PAGE, 1)
    memory_limit.reserve(0, 5)
    memory_limit.close()
    memory_limit.close()
    assert len(os.listdir("/proc/self/fd")) == before


def reserve_in_child(memory_limit, end):
    os.write(end.fd, b"T" if memory_limit.reserve(1, 4 * PAGE) else b"F")
    os.write(end.fd, b"T" if memory_limit.reserve(1, 4 * PAGE) else b"F")


def child(target, *arguments, method="fork"):
    given = [one for argument in arguments for one in (argument if isinstance(argument, list) else [argument])]
    descriptors = [one for one in given if hasattr(one, "fd")]
    descriptors += [end for one in given if hasattr(one, "descriptors") for end in one.descriptors()]
    process = multiprocessing.get_context(method).Process(target=target, args=arguments)
    with passing_to_child(*descriptors):
        process.start()
    return process


def ended(process):
    process.join(LIMIT)
    code = process.exitcode
    process.close()
    return code


@pytest.mark.parametrize("method", METHODS)
def test_the_counters_are_the_same_in_every_process(memory_limit, method):
    read, write = pipe()
    memory_limit.reserve(0, 3 * PAGE)
    process = child(reserve_in_child, memory_limit, write, method=method)
    assert ended(process) == 0
    assert os.read(read.fd, 2) == b"TF"
    assert memory_limit.held() == [3 * PAGE, 4 * PAGE, 0]
    assert memory_limit.pressure == 1
    read.close()
    write.close()


def die_with_the_lock(memory_limit, end):
    real = fcntl.lockf

    def lock_and_die(fd, operation):
        real(fd, operation)
        os.write(end.fd, b"L")
        os.kill(os.getpid(), signal.SIGKILL)

    fcntl.lockf = lock_and_die
    memory_limit.reserve(1, PAGE)


def test_a_worker_that_is_killed_while_it_holds_the_lock_keeps_nobody_out(memory_limit):
    read, write = pipe()
    process = child(die_with_the_lock, memory_limit, write)
    assert os.read(read.fd, 1) == b"L"
    assert ended(process) == -signal.SIGKILL
    assert memory_limit.reserve(0, 10 * PAGE)
    read.close()
    write.close()


def hold_the_lock(memory_limit, end, go):
    fcntl.lockf(memory_limit.descriptors()[0].fd, fcntl.LOCK_EX)
    os.write(end.fd, b"L")
    os.read(go.fd, 1)


def test_the_second_process_waits_for_the_lock_and_no_longer(memory_limit):
    read, write = pipe()
    go_read, go_write = pipe()
    holder = child(hold_the_lock, memory_limit, write, go_read)
    assert os.read(read.fd, 1) == b"L"
    second = child(reserve_in_child, memory_limit, write)
    os.set_blocking(read.fd, False)
    with pytest.raises(BlockingIOError):
        os.read(read.fd, 1)
    assert memory_limit.held() == [0, 0, 0]
    holder.kill()
    assert ended(holder) == -signal.SIGKILL
    assert ended(second) == 0
    assert os.read(read.fd, 2) == b"TT"
    for end in (read, write, go_read, go_write):
        end.close()


def churn(arenas, seed, end, enough):
    """Take, touch, keep and give back at random, with an eye on the others' pressure."""
    rng = random.Random(seed)
    writers = [arena.open_writer() for arena in arenas]
    kept = []
    refused = 0
    for step in itertools.count():
        if step >= 1500 and enough.value:
            break
        writer = rng.choice(writers)
        nbytes = rng.choice([20_000, 100_000, 1_000_000])
        block = writer.take(nbytes)
        refused += block is None
        if block is not None:
            writer.view(block, (nbytes,), "u1")[::PAGE] = 1
            kept.append((writer, block))
        while kept and (len(kept) > 4 or rng.random() < 0.4):
            holder, block = kept.pop(rng.randrange(len(kept)))
            holder.give_back(block)
        rng.choice(writers).tidy()
    for holder, block in kept:
        holder.give_back(block)
    os.write(end.fd, b"R" if refused else b"-")


@pytest.mark.slow
def test_sixty_four_arenas_in_four_processes_never_hold_more_than_the_limit_and_use_no_more_than_they_hold():
    limit = 8 << 20
    memory_limit = MemoryLimit(limit, 64)
    file = ArenaFile(memory_limit)
    arenas = [file.new_arena(k) for k in range(64)]
    read, write = pipe()
    enough = multiprocessing.RawValue("b", 0)  # the workers go on until they were looked at while it was tight
    processes = [child(churn, arenas[16 * k : 16 * k + 16], k, write, enough) for k in range(4)]
    most = 0

    def look():
        nonlocal most
        # A worker reserves before it touches and gives back after it let go: what is there is never more than what
        # is held. Counted under the lock, so that the counters belong to one moment.
        lock = memory_limit.descriptors()[0].fd
        fcntl.lockf(lock, fcntl.LOCK_EX)
        try:
            held = sum(memory_limit.held())
            status_pages = 64 * 4 * PAGE
            touched = os.fstat(arenas[0].descriptors()[0].fd).st_blocks * 512
        finally:
            fcntl.lockf(lock, fcntl.LOCK_UN)
        assert held <= limit
        assert touched <= limit + status_pages
        most = max(most, held)
        enough.value = most > limit / 2
        return not any(process.is_alive() for process in processes)

    try:
        wait_until(look, 3 * LIMIT, "the workers did not end")
    finally:
        enough.value = True
    assert [ended(process) for process in processes] == [0] * 4
    assert b"R" in os.read(read.fd, 4)
    for resource in (file, memory_limit, read, write):
        resource.close()
