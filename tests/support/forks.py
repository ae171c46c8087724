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
