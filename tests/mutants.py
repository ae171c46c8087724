"""Mutation testing of the modules that decide: ``python -m tests.mutants [MODULE …]``.

mutmut makes the mutants, one small change of a function each, and runs the tests that call this function. A mutant
that no test notices has survived. Texts are not mutated. Mutants in ``equivalent_mutants.toml`` behave like the
original: they are left out of the scores. Mutants are in the folder ``mutants``; ``mutmut browse`` shows them.
"""

import resource
import shutil
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
from mutmut import __main__ as mutmut
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
REQUIRED = 90  # percent of the mutants of each module that are not equivalent
MAX_BYTES = 8 << 30  # of address space: a mutant may allocate without end
TEXTS = (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)

Change = tuple[str, str]  # lines of the original, lines of the mutant


def without_texts(call: cst.Call) -> Iterator[cst.Call]:
    """Remove arguments, as mutmut does, that are not texts."""

    def texts(of: cst.Call) -> int:
        return sum(isinstance(argument.value, TEXTS) for argument in of.args)

    return (mutant for mutant in mutators.operator_arg_removal(call) if texts(mutant) == texts(call))


OPERATORS = [
    (node, without_texts if operator is mutators.operator_arg_removal else operator)
    for node, operator in mutators.mutation_operators
    if operator is not mutators.operator_string
]


def change_of(name: str, path: Path) -> Change:
    """The lines that the mutant changes, before and after."""
    lines = get_diff_for_mutant(name, path=path).splitlines()[2:]
    before, after = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return before, after


def main(patterns: list[str]) -> int:
    file_mutation.mutation_operators = OPERATORS
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    shutil.rmtree("mutants", ignore_errors=True)  # mutmut does not notice that a test has changed
    mutmut.cli(["run", *(f"{pattern}*" for pattern in patterns)], standalone_mode=False)

    equivalent: dict[str, set[Change]] = defaultdict(set)
    for entry in tomllib.loads(EQUIVALENT.read_text("utf-8")).get("mutant", []):
        equivalent[entry["module"]].add((entry["before"], entry["after"]))
    failed = False
    for path in sorted(walk_mutatable_files()):
        data = SourceFileMutationData(path=path)
        data.load()
        known, alive, killed = equivalent[path.as_posix()].copy(), {}, 0
        num_equivalent = 0
        for name, code in data.exit_code_by_key.items():
            if code is None:
                continue
            if status_by_exit_code[code] not in ("survived", "no tests"):
                killed += 1
            elif (change := change_of(name, path)) in known:
                num_equivalent += 1
            else:
                alive[name] = change
        total = killed + len(alive)
        score = 100 * killed / max(1, total)
        for name, (before, after) in alive.items():
            print(f"{name}\n    - {before}\n    + {after}")
        print(f"{path}: {killed} of {total} killed, {score:.1f} %; {num_equivalent} equivalent")
        failed |= total > 0 and score < REQUIRED
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
