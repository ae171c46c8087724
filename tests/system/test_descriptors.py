"""Descriptors: closed in children that did not ask for them, handed over to those that did."""

import errno
import multiprocessing
import os
import sys
from threading import Thread

import numpy as np
import pytest

from dataflow.system import descriptors
from dataflow.system.descriptors import (
    Descriptor,
    counted,
    passing_to_child,
    pipe,
    shared_mapping,
    shared_memory_file,
    soft_limit,
)
from tests.support.fakes import METHODS
from tests.support.threads import Interrupted
from tests.support.waits import LIMIT


def in_child(check):
    """Fork, run `check` in the child, and return what it returned, as a small number."""
    pid = os.fork()
    if not pid:
        code = 99
        try:
            code = int(check())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture
def ends():
    read, write = pipe()
    yield read, write
    read.close()
    write.close()


def test_closing_twice_closes_nothing_else(ends):
    read, _ = ends
    number = read.fd
    read.close()
    other = os.open(os.devnull, os.O_RDONLY)
    assert other == number  # the number is in use again
    read.close()
    assert is_open(other)
    os.close(other)


def test_a_forked_child_has_none_of_them(ends):
    numbers = [end.fd for end in ends]
    assert in_child(lambda: any(map(is_open, numbers))) == 0
    assert all(map(is_open, numbers))


def test_a_child_keeps_what_is_handed_over_and_nothing_else(ends):
    read, write = ends
    numbers = read.fd, write.fd
    with passing_to_child(read):
        assert in_child(lambda: is_open(numbers[0]) and not is_open(numbers[1])) == 1
    assert in_child(lambda: is_open(numbers[0])) == 0


def test_a_grandchild_does_not_inherit_what_the_child_was_handed(ends):
    read, _ = ends
    number = read.fd

    def child():
        with passing_to_child():
            return is_open(number) and in_child(lambda: is_open(number)) == 0

    with passing_to_child(read):
        assert in_child(child) == 1


def test_in_a_child_closing_what_was_closed_there_closes_nothing_of_the_child(ends):
    read, _ = ends
    number = read.fd

    def child():
        while (other := os.open(os.devnull, os.O_RDONLY)) < number:
            pass  # the child uses the number for something of its own
        read.close()
        return other == number and is_open(other)

    assert in_child(child) == 1


def test_only_the_thread_that_hands_over_does(ends):
    read, _ = ends
    number, codes = read.fd, []
    with passing_to_child(read):
        thread = Thread(target=lambda: codes.append(in_child(lambda: is_open(number))))
        thread.start()
        thread.join()
    assert codes == [0]


def say_hello(end):
    os.write(end.fd, b"hello")


@pytest.mark.parametrize("make", [pipe, lambda: shared_memory_file("test", 1)], ids=["pipe", "memory"])
def test_no_thread_forks_while_another_one_opens_a_descriptor(make, monkeypatch):
    codes, add = [], set.add

    class Adding(set):
        def add(self, descriptor):
            number = descriptor._number
            forking = Thread(target=lambda: codes.append(in_child(lambda: is_open(number))))
            threads.append(forking)
            forking.start()
            forking.join(0.2)  # forks now, or waits
            add(self, descriptor)

    threads = []
    monkeypatch.setattr(descriptors, "_open", Adding())
    made = make()
    for thread in threads:
        thread.join(LIMIT)
    for descriptor in made if isinstance(made, tuple) else [made]:
        descriptor.close()
    assert codes and not any(codes)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_child_that_is_forked_while_another_thread_closes_a_descriptor_has_what_the_parent_has(
    ends, is_closed, monkeypatch
):
    number, codes, close = ends[0].fd, [], os.close

    def forked_meanwhile(fd):
        monkeypatch.setattr(os, "close", close)
        if is_closed:
            close(fd)
            assert os.open(os.devnull, os.O_RDONLY) == fd  # the number is in use again
        codes.append(in_child(lambda: is_open(number)))
        close(fd)

    monkeypatch.setattr(os, "close", forked_meanwhile)
    ends[0].close()
    assert codes == [is_closed]


@pytest.mark.parametrize("method", METHODS)
def test_a_descriptor_travels_with_a_process_by_every_start_method(ends, method):
    read, write = ends
    process = multiprocessing.get_context(method).Process(target=say_hello, args=(write,))
    with passing_to_child(write):
        process.start()
    write.close()
    assert os.read(read.fd, 5) == b"hello"
    assert os.read(read.fd, 1) == b""  # the child's end was the last
    process.join()
    assert process.exitcode == 0
    process.close()


def test_shared_memory_is_zeroed_and_has_no_name():
    memory = shared_memory_file("dataflow-test", 4096)
    assert os.pread(memory.fd, 5000, 0) == bytes(4096)
    assert os.readlink(f"/proc/self/fd/{memory.fd}").endswith("(deleted)")
    memory.close()


def test_shared_memory_works_without_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    memory = shared_memory_file("dataflow-test", 64)
    assert os.fstat(memory.fd).st_size == 64
    assert os.fstat(memory.fd).st_nlink == 0
    memory.close()


class NoMemory:
    def add(self, descriptor):
        raise MemoryError


def refuse(*_):
    raise OSError(errno.EIO, "no")


def test_what_cannot_be_made_is_closed(monkeypatch):
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        patched.setattr(descriptors, "_open", NoMemory())
        with pytest.raises(MemoryError):
            pipe()
    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="no"):
            shared_memory_file("test", 4096)
    assert os.listdir("/proc/self/fd") == before


def test_a_limit_that_cannot_be_read_is_left_out_of_the_message(monkeypatch):
    import resource

    def none_left(num):
        raise OSError(errno.EMFILE, "none")

    monkeypatch.setattr(resource, "getrlimit", refuse)
    monkeypatch.setattr(descriptors, "_try_to_open", none_left)
    with pytest.raises(OSError, match=r"needs about 7 file descriptors, and too few are left\."), counted("It", 7):
        pass
    assert soft_limit() == sys.maxsize


def test_a_descriptor_is_not_inherited_by_programs(ends):
    assert not any(os.get_inheritable(end.fd) for end in ends)
    assert isinstance(ends[0], Descriptor)


# -- memory ------------------------------------------------------------------------------------------------------------


linux = pytest.mark.skipif(sys.platform != "linux", reason="best effort elsewhere")


@pytest.fixture
def file():
    file = shared_memory_file("test", 8192)
    yield file
    file.close()


def write(memory, value):
    memory[0] = value
    return memory[0]


@linux
@pytest.mark.parametrize("is_closed", [False, True])
def test_what_a_forked_child_writes_is_its_own(file, is_closed):
    memory = shared_mapping(file, 8192)
    memory[:2] = b"ab"
    array = np.frombuffer(memory, np.uint8)
    if is_closed:
        file.close()
    assert in_child(lambda: write(array, 7)) == 7
    assert in_child(lambda: array[1]) == ord("b")
    assert bytes(memory[:2]) == b"ab"


def test_a_child_to_which_it_is_handed_over_writes_for_both(file):
    memory = shared_mapping(file, 8192)
    with passing_to_child(file):
        in_child(lambda: write(memory, 7))
    assert memory[0] == 7


@linux
def test_a_mapping_of_its_own_is_private_in_a_child_to_which_the_file_is_handed_over(file):
    memory = shared_mapping(file, 8192, own=True)
    with passing_to_child(file):
        assert in_child(lambda: write(memory, 7)) == 7
    assert memory[0] == 0


@linux
def test_a_grandchild_inherits_what_the_child_wrote(file):
    memory = shared_mapping(file, 8192)
    assert in_child(lambda: write(memory, 7) and in_child(lambda: memory[0])) == 7
    assert memory[0] == 0


@linux
def test_mappings_begin_anywhere_in_the_file_also_in_a_child(file):
    memory, later = shared_mapping(file, 8192), shared_mapping(file, 4096, offset=4096)
    later[0] = 5
    assert memory[4096] == 5
    assert in_child(lambda: later[0]) == 5


@linux
def test_mappings_need_no_descriptors_and_keep_one_when_the_file_is_closed():
    def count():
        return len(os.listdir("/proc/self/fd"))

    before = count()
    file = shared_memory_file("test", 8192)
    mappings = [shared_mapping(file, 64) for _ in range(5)]
    assert count() == before + 1
    del mappings[0]
    file.close()
    assert count() == before + 1
    mappings.clear()
    assert count() == before


@linux
def test_files_are_mapped_where_reserved_addresses_count_as_memory(file, monkeypatch):
    class Refusing(descriptors._Mapping):
        def __new__(cls, fd, *args, **options):
            if fd < 0:
                raise OSError(errno.ENOMEM, "no")
            return super().__new__(cls, fd, *args, **options)

    monkeypatch.setattr(descriptors, "_Mapping", Refusing)
    memory = shared_mapping(file, 4096, offset=4096)
    memory[0] = 9
    assert os.pread(file.fd, 1, 4096) == b"\x09"
    assert in_child(lambda: write(memory, 7)) == 7
    assert memory[0] == 9


@linux
def test_files_are_mapped_by_python_where_the_system_maps_none_over_others(file, monkeypatch):
    monkeypatch.setattr(descriptors, "_map_memory", lambda: lambda *_: -1)
    shared_mapping(file, 4096, offset=4096)[0] = 9
    assert os.pread(file.fd, 1, 4096) == b"\x09"


def test_where_open_files_cannot_be_listed_a_child_has_no_descriptors_either(file, monkeypatch):
    memory = shared_mapping(file, 8192)
    monkeypatch.setattr(os, "listdir", refuse)
    number = file.fd
    assert in_child(lambda: is_open(number)) == 0
    assert memory[0] == 0


def test_what_is_closed_or_gone_does_no_harm(file):
    memory = shared_mapping(file, 8192)
    other = shared_mapping(file, 8192)
    memory.close()
    del memory
    assert in_child(lambda: write(other, 3)) == 3
    assert other[0] == 0


def test_memory_may_be_closed_while_another_thread_maps_some(file, monkeypatch):
    memory, other_memory = (shared_mapping(file, 8192) for _ in range(2))
    mapped = Interrupted([memory])
    mapped.other_thread = lambda: mapped.add(other_memory)
    monkeypatch.setattr(descriptors, "_mapped", mapped)
    file.close()
    assert memory.kept_open is not None
