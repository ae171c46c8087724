"""A program that damages a file in many ways, and reads it; where that may crash, in a process of its own.

``python -m tests.formats.damaged FORMAT PATH SILENT < cases`` prints a verdict for each case: a list of
``[what, place]``, where `what` is "cut" (at this byte) or "flip" (of this bit).
"""

import json
import os
import pathlib
import sys

from dataflow import FileDamaged, LMDBData
from dataflow.formats.records import RecordDecoder
from tests.formats.files import FORMATS, HDF5, LMDB, exact

MAY_CRASH = (LMDB, HDF5)  # libraries in C
SAME, DAMAGED, OTHER, WRONG = range(4)
VERDICTS = {SAME: "same", DAMAGED: "damaged", OTHER: "another error", WRONG: "WRONG DATA"}


def read(form, path):
    """All datapoints, in passes and by index; None if these differ."""
    with form.load(path, shuffle=False) as df:
        found = exact(list(df))
        if form is not LMDB:
            return found
        # LMDB finds neighbours and single datapoints in two ways, and each is verified only once.
        again = [exact(list(df)), ("list", [exact(df[k]) for k in range(len(df))])]
    with form.load(path, shuffle=False) as df:
        again.append(("list", [exact(df[k]) for k in range(len(df))]))
    with LMDBData(path, shuffle=False) as df:
        pairs = list(df)
    values = ("list", [exact(RecordDecoder(path).decode(value, 0, key=key)) for key, value in pairs])
    return found if [*again, values] == [found] * 4 else None


def judge(form, path, expected):
    try:
        found = read(form, path)
    except FileDamaged as error:
        ok = "written: copy it again" in str(error) and error.path == path
        return DAMAGED if ok else OTHER
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return OTHER
    return SAME if found == expected else WRONG


def judge_apart(form, path, expected):
    pid = os.fork()
    if not pid:
        os._exit(judge(form, path, expected))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def damaged(content, what, place):
    if what == "cut":
        return content[:place]
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def main(name, path, silent):
    form = next(form for form in FORMATS if form.name == name)
    expected = read(form, path)
    content = pathlib.Path(path).read_bytes()
    index = pathlib.Path(path + ".index")
    kept = index.read_bytes() if index.exists() else None
    status = os.stat(path)
    verdicts = []
    for what, place in json.load(sys.stdin):
        pathlib.Path(path).write_bytes(damaged(content, what, place))
        if silent:  # as a disk does it
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        if kept is not None:
            index.write_bytes(kept) if silent else index.unlink(missing_ok=True)
        code = judge_apart(form, path, expected) if form in MAY_CRASH else judge(form, path, expected)
        verdicts.append(VERDICTS.get(code, f"signal {-code}"))
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "silent")
