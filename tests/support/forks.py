"""Forked children for tests."""

import os


def in_child(act):
    """Run `act` in a forked child; how it ended, in words."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = f"returned {act()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, said.encode()[:4000])
            os._exit(0)
    os.close(write)
    with open(read) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def exit_code_of_fork(check):
    """Run `check` in a forked child; 0 if it returned True, 2 if not, 1 if it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
