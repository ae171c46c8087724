"""The plan of the package, read from the sources: which room imports which, and what stays private.

Each rule is a function from {path below dataflow/: source} to a list of sentences, one for each violation.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "dataflow"

LAYERS = {  # each room, or module that is in none, and what it may import beside itself: all of that stands above it
    "errors": "",
    "version": "",
    "old_places": "",
    "system": "errors",
    "protocol": "errors system",
    "transport": "errors system protocol.failures",
    "sources": "errors protocol system.descriptors system.session system.urls system.walking",
    "transforms": "errors protocol system.interrupts system.session",
    "observe": "errors system protocol transport transforms",
    "runners": "errors system protocol transport transforms observe",
    "formats": "errors system protocol transport sources transforms observe",
    "remote": "old_places errors system protocol transport sources observe",
    "ray": "errors system protocol transport sources transforms runners",
    "frameworks": "errors system protocol transforms runners",
    "compat": "errors system protocol transport sources runners formats",
    "testing": "errors system protocol transforms runners",
}
LATE = {"protocol": "observe", "runners": "ray"}  # imports that go up, only inside of functions and for type checkers
EVERYTHING = ("__init__", "__main__")  # may import everything, and are imported by nothing

PROTOCOL = "_df_"  # what our own classes call of each other: the only underscored names that cross files
MAX_LEVELS = 2  # dataflow/room/file.py
SAYS_NOTHING = re.compile(r"(utils?|helpers?|common|misc|part_?\d+)$")
ANSWERS_OLD_IMPORTS = "dataflow.old_places.watch"  # has to be there before somebody imports what is not
MAY_PRINT = {"observe/display.py", "__main__.py"}
# Public names of the standard library.
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_make", "_replace"}
# What fsspec documents for programs that use its file systems on an event loop of their own.
DOCUMENTED |= {"_cat_file", "_get_kwargs_from_urls", "_info", "_strip_protocol"}
# The part of the module `signal` that is written in C. It has the same functions, without enumerations.
DOCUMENTED |= {"_signal"}
TESTED_ELSEWHERE = {  # modules without a test file of their name, and the place that tests them
    "compat/aliases.py": "names of classes that have tests: tests/test_reference.py, and every node under each name",
}
Tree = dict[str, str]


def read_tree() -> Tree:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}


@functools.cache
def parsed(source: str) -> tuple[ast.Module, dict[type[ast.AST], list[Any]]]:
    """A module, and all that is in it by type: every rule reads every file."""
    module = ast.parse(source)
    nodes: dict[type[ast.AST], list[Any]] = {}
    for node in ast.walk(module):
        nodes.setdefault(type(node), []).append(node)
    return module, nodes


def nodes_in(source: str, *types: type[ast.AST]) -> Iterator[Any]:
    for kind in types:
        yield from parsed(source)[1].get(kind, ())


def nodes_of(tree: Tree, *types: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    for path, source in tree.items():
        for node in nodes_in(source, *types):
            yield path, node


def room_of(path: str) -> str:
    return PurePosixPath(path).parts[0].removesuffix(".py")


def is_private(name: str) -> bool:
    if name.startswith(PROTOCOL) or re.fullmatch("__.+__", name):
        return False
    return name.startswith("_") and name not in DOCUMENTED


def imported_modules(path: str, node: ast.AST) -> list[str]:
    """Name, in full, what an import statement imports; of `from a import b` that is a.b, module or not."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    here = ["dataflow", *PurePosixPath(path).parts]
    prefix = here[: len(here) - node.level] if node.level else []
    module = ".".join([*prefix, *([node.module] if node.module else [])])
    return [f"{module}.{alias.name}" for alias in node.names]


def imports_go_down(tree: Tree) -> list[str]:
    found = [f"{path}: {room_of(path)} is in no layer" for path in tree if room_of(path) not in {*LAYERS, *EVERYTHING}]
    for path, source in tree.items():
        room = room_of(path)
        found += [
            f"{path}:{node.lineno}: {room} must not import {other}"
            for node in (nodes_in(source, ast.Import, ast.ImportFrom) if room in LAYERS else ())
            for other in rooms_in(path, node)
            if not may_import(room, other, is_late=id(node) in late_nodes(source))
        ]
    return found


def rooms_in(path: str, node: ast.AST) -> Iterator[str]:
    """Name what an import statement imports of the package, as ``room.module.name``."""
    for module in imported_modules(path, node):
        package, _, rest = module.partition(".")
        name, _, inside = rest.partition(".")
        if package == "dataflow":
            yield rest if inside or name in LAYERS else "__init__"


def may_import(room: str, other: str, *, is_late: bool) -> bool:
    allowed = [room, *LAYERS[room].split(), *([LATE[room]] if is_late and room in LATE else [])]
    return any(f"{other}.".startswith(f"{name}.") for name in allowed)


@functools.cache
def late_nodes(source: str) -> frozenset[int]:
    """The ids of the nodes that are executed when a function is called, or read by type checkers only."""
    late: set[int] = set()
    for node in nodes_in(source, ast.If, ast.FunctionDef, ast.AsyncFunctionDef):
        if not isinstance(node, ast.If) or (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            late |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    return frozenset(late)


def no_star_import(tree: Tree) -> list[str]:
    return [
        f"{path}:{node.lineno}: star import"
        for path, node in nodes_of(tree, ast.ImportFrom)
        if any(alias.name == "*" for alias in node.names)
    ]


def no_global(tree: Tree) -> list[str]:
    return [f"{path}:{node.lineno}: global" for path, node in nodes_of(tree, ast.Global)]


def no_private_name_crosses_a_file(tree: Tree) -> list[str]:
    """An attribute with an underscore belongs to `self`, or to an object whose class is in the same file."""
    found = []
    for path, source in tree.items():
        own = set(defined_attributes(parsed(source)[0]))
        modules = set()
        for node in nodes_in(source, ast.Import, ast.ImportFrom):
            imported = imported_modules(path, node)
            if private := [name for name in imported if any(map(is_private, name.split(".")))]:
                found.append(f"{path}:{node.lineno}: imports {', '.join(private)}")
            modules |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        for node in nodes_in(source, ast.Attribute):
            if is_private(node.attr):
                owner = root_of(node.value)
                if not is_self(node.value) and (owner in modules or node.attr not in own):
                    found.append(f"{path}:{node.lineno}: {ast.unparse(node)} is private to another file")
    return found


@functools.cache
def defined_attributes(top: ast.AST) -> tuple[str, ...]:
    """Name what the classes of a file define: methods, class attributes, slots, assignments to self."""
    return tuple(definitions_in(top))


def definitions_in(top: ast.AST) -> Iterator[str]:
    for node in ast.walk(top):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield statement.name
                elif isinstance(statement, ast.Assign | ast.AnnAssign):
                    parts = list(ast.walk(statement))
                    yield from (part.id for part in parts if isinstance(part, ast.Name))
                    yield from (str(part.value) for part in parts if isinstance(part, ast.Constant))


def is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def root_of(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def only_the_display_prints(tree: Tree) -> list[str]:
    return [
        f"{path}:{node.lineno}: print"
        for path, node in nodes_of(tree, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print" and path not in MAY_PRINT
    ]


def no_module_hides_the_standard_library(tree: Tree) -> list[str]:
    return [f"{path}: {name}" for path in tree for name in names_in(path) if name in sys.stdlib_module_names]


def folders_are_shallow(tree: Tree) -> list[str]:
    return [path for path in tree if len(PurePosixPath(path).parts) > MAX_LEVELS]


def files_are_named_for_an_idea(tree: Tree) -> list[str]:
    return [path for path in tree if any(SAYS_NOTHING.search(name) for name in names_in(path))]


def no_file_name_twice(tree: Tree) -> list[str]:
    places: dict[str, list[str]] = {}
    for path in tree:
        places.setdefault(PurePosixPath(path).name, []).append(path)
    return [", ".join(where) for name, where in places.items() if len(where) > 1 and name != "__init__.py"]


def names_in(path: str) -> tuple[str, ...]:
    return PurePosixPath(path).with_suffix("").parts


def front_door_lists_its_names(tree: Tree) -> list[str]:
    """The imports for type checkers are those of the table of public names, each as itself: they read no `__all__`."""
    table: dict[str, str] = {}  # name -> module
    static: dict[str, str] = {}
    found: list[str] = []
    for statement in ast.parse(tree.get("__init__.py", "")).body:
        match statement:
            case ast.Assign(targets=[ast.Name("_NAMES_OF")], value=ast.Dict() as value):
                for module, names in ast.literal_eval(value).items():
                    found += [f"{name} is in two modules" for name in names.split() if name in table]
                    table |= dict.fromkeys(names.split(), module)
            case ast.If(test=ast.Name("TYPE_CHECKING"), body=body):
                for node in body:
                    for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                        static[alias.name] = str(node.module)
                        found += (
                            [f"{alias.name} must be imported as {alias.name}"] if alias.asname != alias.name else []
                        )
    return found + [
        f"{name} is in {static.get(name)} to a type checker, and in {table.get(name)} to an interpreter"
        for name in sorted(static.keys() | table.keys())
        if static.get(name) != table.get(name)
    ]


def front_door_imports_nothing_of_ours(tree: Tree) -> list[str]:
    """`import dataflow` loads no module of ours: each name is imported when it is first used."""
    return [
        f"__init__.py:{node.lineno}: imports {module}"
        for node in ast.parse(tree.get("__init__.py", "")).body
        for module in imported_modules("__init__.py", node)
        if module.partition(".")[0] not in sys.stdlib_module_names and module != ANSWERS_OLD_IMPORTS
    ]


def no_finaliser_methods(tree: Tree) -> list[str]:
    """A `__del__` may run in any thread, and after its module is gone; `weakref.finalize` is the way."""
    return [
        f"{path}:{node.lineno}: __del__" for path, node in nodes_of(tree, ast.FunctionDef) if node.name == "__del__"
    ]


class Found(NamedTuple):
    """A class of ours."""

    path: str
    node: ast.ClassDef
    bases: tuple[str, ...]  # names, without the modules that they are imported from

    @property
    def is_protocol(self) -> bool:
        return "Protocol" in self.bases


def classes_of(tree: Tree) -> Iterator[Found]:
    for path, node in nodes_of(tree, ast.ClassDef):
        heads = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
        yield Found(path, node, tuple(ast.unparse(head).rpartition(".")[2] for head in heads))


def no_class_name_twice(tree: Tree) -> list[str]:
    places: dict[str, list[str]] = {}
    for found in classes_of(tree):
        places.setdefault(found.node.name, []).append(f"{found.path}:{found.node.lineno}")
    return [f"{name}: {', '.join(where)}" for name, where in places.items() if len(where) > 1]


def no_cast_to_a_class_of_ours(tree: Tree) -> list[str]:
    """What has to be cast to a concrete class is known by the wrong type: give it a protocol, or keep the class."""
    concrete = {found.node.name for found in classes_of(tree) if not found.is_protocol}
    found = []
    for path, node in nodes_of(tree, ast.Call):
        if node.args and ast.unparse(node.func) in {"cast", "typing.cast"}:
            target = node.args[0]
            text = target.value if isinstance(target, ast.Constant) else ast.unparse(target)
            if names := concrete & set(re.findall(r"\w+", str(text))):
                found.append(f"{path}:{node.lineno}: cast to {', '.join(sorted(names))}")
    return found


def no_import_cycle(tree: Tree) -> list[str]:
    """Imports inside functions, and those for type checkers, count too."""
    modules = {module_of(path): path for path in tree}
    graph: dict[str, set[str]] = {}
    for path, node in nodes_of(tree, ast.Import, ast.ImportFrom):
        here = module_of(path)
        for name in imported_modules(path, node):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name not in {"", "dataflow", here}:  # the package itself imports nothing before it is asked
                graph.setdefault(here, set()).add(name)
    return [" -> ".join(cycle) for cycle in cycles_in(graph)]


def module_of(path: str) -> str:
    return ".".join(["dataflow", *names_in(path)]).removesuffix(".__init__")


def cycles_in(graph: dict[str, set[str]]) -> list[list[str]]:
    """One cycle for each edge that leads back, found depth first."""
    cycles, done = [], set()

    def visit(module: str, way: list[str]) -> None:
        if module in way:
            cycles.append([*way[way.index(module) :], module])
        elif module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, [*way, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return cycles


def no_private_name_is_inherited(tree: Tree) -> list[str]:
    """A class uses its own private names, and those of bases in its own file; nobody else's, and it hides none."""
    classes = {found.node.name: found for found in classes_of(tree)}
    found = []
    for own in classes.values():
        lineage = list(ancestors(own, classes))
        here = [own, *(base for base in lineage if base.path == own.path)]
        near = {name for base in here for name in defined_attributes(base.node)}
        far = {name: base.path for base in lineage if base.path != own.path for name in defined_attributes(base.node)}
        used = {
            node.attr: node.lineno
            for node in ast.walk(own.node)
            if isinstance(node, ast.Attribute) and is_self(node.value)
        }
        defined = dict.fromkeys(defined_attributes(own.node), own.node.lineno)
        for name, line in (defined | used).items():
            if is_private(name) and (name in far or name not in near):
                where = f"private to {far[name]}" if name in far else "defined nowhere in this file"
                found.append(f"{own.path}:{line}: {own.node.name} uses {name}, which is {where}")
    return found


def ancestors(own: Found, classes: dict[str, Found]) -> Iterator[Found]:
    for name in own.bases:
        if name in classes and classes[name].node is not own.node:
            yield classes[name]
            yield from ancestors(classes[name], classes)


def front_door(
    *,
    static: str = "from dataflow.protocol.base import A as A, seed as seed",
    table: str = "{'dataflow.protocol.base': 'A seed'}",
) -> str:
    return f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {static}\n_NAMES_OF = {table}\n"


FRONT_DOORS = [
    front_door(static="from dataflow.protocol.base import seed as seed"),
    front_door(static="from dataflow.protocol.base import A as A, B as B, seed as seed"),
    front_door(static="from dataflow.errors import A as A, seed as seed"),
    front_door(static="from dataflow.protocol.base import A, seed as seed"),
    front_door(static="from dataflow.protocol.base import B as A, seed as seed"),
    front_door(table="{'dataflow.protocol.base': 'A'}"),
    front_door(table="{'dataflow.protocol.base': 'A', 'dataflow.protocol.seeding': 'seed'}"),
    front_door(table="{'dataflow.protocol.seeding': 'seed', 'dataflow.protocol.base': 'A seed'}"),
]
PLANTED = [
    (imports_go_down, "errors.py", "import dataflow.protocol.base"),
    (imports_go_down, "protocol/base.py", "from dataflow import MapData"),
    (imports_go_down, "protocol/base.py", "from .. import testing"),
    (imports_go_down, "protocol/base.py", "def late():\n    from dataflow.runners.engine import Engine"),
    (imports_go_down, "protocol/base.py", "from dataflow.observe.figures import Figures"),
    (imports_go_down, "sources/in_memory.py", "from ..transforms.mapping import MapData"),
    (imports_go_down, "sources/in_memory.py", "from dataflow.system import worker_pool"),
    (imports_go_down, "transforms/batching.py", "from dataflow.transport.codec import encode"),
    (imports_go_down, "observe/speed.py", "import dataflow.sources"),
    (imports_go_down, "system/urls.py", "from dataflow.protocol.seeding import seed"),
    (imports_go_down, "system/urls.py", "from dataflow import protocol"),
    (imports_go_down, "transport/codec.py", "from dataflow.protocol.datapoint import stack"),
    (imports_go_down, "transport/codec.py", "from dataflow.protocol import datapoint"),
    (imports_go_down, "remote/sending.py", "from dataflow.ray import RayRunner"),
    (imports_go_down, "runners/runners.py", "from dataflow.ray.ray_backend import RayBackend"),
    (imports_go_down, "attic.py", ""),
    (imports_go_down, "attic/old.py", ""),
    (no_file_name_twice, "remote/base.py", ""),
    (no_star_import, "protocol/base.py", "from dataflow.errors import *"),
    (no_global, "protocol/base.py", "def f():\n    global x\n    x = 1"),
    (no_private_name_crosses_a_file, "protocol/base.py", "from dataflow.errors import _text"),
    (no_private_name_crosses_a_file, "protocol/base.py", "from dataflow import _hidden"),
    (no_private_name_crosses_a_file, "protocol/base.py", "import numpy._core"),
    (no_private_name_crosses_a_file, "protocol/base.py", "from dataflow import errors\n_text = 1\nerrors._text()"),
    (no_private_name_crosses_a_file, "protocol/base.py", "import dataflow.errors\ndataflow.errors._text()"),
    (no_private_name_crosses_a_file, "protocol/base.py", "def f(process):\n    return process._popen"),
    (only_the_display_prints, "protocol/base.py", "print('here')"),
    (no_module_hides_the_standard_library, "runners/queue.py", ""),
    (folders_are_shallow, "runners/jobs/produce.py", ""),
    (files_are_named_for_an_idea, "runners/utils.py", ""),
    (files_are_named_for_an_idea, "runners/engine_part2.py", ""),
    (files_are_named_for_an_idea, "common/engine.py", ""),
    *((front_door_lists_its_names, "__init__.py", text) for text in FRONT_DOORS),
    (front_door_imports_nothing_of_ours, "__init__.py", "from dataflow.protocol.base import A"),
    (front_door_imports_nothing_of_ours, "__init__.py", "from . import base"),
    (front_door_imports_nothing_of_ours, "__init__.py", "import numpy"),
    (no_class_name_twice, "errors.py", "class A:\n    pass"),
    (no_class_name_twice, "errors.py", "def f():\n    class A:\n        pass"),
    (no_cast_to_a_class_of_ours, "errors.py", "from typing import cast\ndef f(x):\n    return cast(A, x)"),
    (no_cast_to_a_class_of_ours, "errors.py", "from typing import cast\ndef f(x):\n    return cast('A | None', x)"),
    (no_cast_to_a_class_of_ours, "errors.py", "import typing\ndef f(x):\n    return typing.cast(list[A], x)"),
    (no_import_cycle, "protocol/seeding.py", "def late():\n    from dataflow.protocol import datapoint"),
    (no_import_cycle, "protocol/seeding.py", "if TYPE_CHECKING:\n    from dataflow.protocol.datapoint import get"),
    (no_import_cycle, "runners/liveness.py", "from . import engine"),
    (no_private_name_is_inherited, "compat/aliases.py", "class C(A):\n    def f(self):\n        return self._x"),
    (no_private_name_is_inherited, "compat/aliases.py", "class C(base.A):\n    def f(self):\n        self._x = 1"),
    (no_private_name_is_inherited, "compat/aliases.py", "class C(A[int]):\n    def f(self):\n        super()._x()"),
    (
        no_private_name_is_inherited,
        "compat/aliases.py",
        "class C(A):\n    pass\nclass D(C):\n    def _step(self):\n        pass",
    ),
    (no_private_name_is_inherited, "compat/aliases.py", "class C(A):\n    _step = None"),
    (
        no_private_name_is_inherited,
        "compat/aliases.py",
        "class C:\n    def f(self):\n        return self._from_elsewhere",
    ),
    (no_finaliser_methods, "protocol/base.py", "class A:\n    def __del__(self):\n        pass"),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in PLANTED))

SOUND = {
    "__init__.py": front_door(),
    "__main__.py": "from dataflow import A\nprint(A)",
    "protocol/seeding.py": "from dataflow.errors import Error",
    "protocol/datapoint.py": "from dataflow.errors import Error\nfrom dataflow.protocol.seeding import seed",
    "protocol/base.py": "class A:\n    def same(self, other):\n        return self._x, other._x\n"
    "    def __init__(self):\n        self._x = super()._x\n"
    "        other._df_level\n"
    "    def _step(self):\n        self._df_level = 1\n"
    "class B(A):\n    def f(self):\n        return self._x, self._step(), self._y\n    _y = 1",
    "protocol/passes.py": "if TYPE_CHECKING:\n    from dataflow.observe.figures import Figures\n"
    "def report():\n    from dataflow.observe.gathering import report_of",
    "protocol/state.py": "class Held(Protocol):\n    pass\ndef f(x):\n    return cast(Held, x), cast(int, x)",
    "remote/sending.py": "from dataflow.protocol.base import A\nclass Link(A):\n    def f(self):\n"
    "        self._z = self._df_level\n        return self._z, self.g()",
    "sources/in_memory.py": "from dataflow.system import descriptors\nfrom . import synthetic",
    "transport/codec.py": "import os\nfrom dataflow.protocol.failures import Report\nos._exit(1)",
    "runners/engine.py": "from ..system.worker_pool import WorkerPool\nfrom .liveness import WorkerStates",
}


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_the_package_follows_the_rule(rule):
    tree = read_tree()
    assert tree
    assert rule(tree) == []


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_accepts_what_is_sound(rule):
    assert rule(SOUND) == []


@pytest.mark.parametrize(("rule", "path", "source"), PLANTED, ids=name_of)
def test_a_rule_finds_what_is_planted(rule, path, source):
    assert rule({**SOUND, path: source})


def test_every_module_has_a_test_file_of_its_name_or_says_where_it_is_tested():
    tests = PACKAGE.parent / "tests"
    modules = {path for path in map(PurePosixPath, read_tree()) if path.stem not in EVERYTHING}
    without = {str(path) for path in modules if not (tests / path.with_name(f"test_{path.name}")).exists()}
    assert without == TESTED_ELSEWHERE.keys()
    for place in TESTED_ELSEWHERE.values():
        named = FILE.findall(place)
        assert named and all((PACKAGE.parent / name).exists() for name in named), place


def test_the_drawing_of_the_package_shows_every_file_and_no_other():
    page = (PACKAGE.parent / "docs" / "how-it-works.md").read_text()
    (drawing,) = re.findall(r"^dataflow/$.*?^```$", page, re.MULTILINE | re.DOTALL)
    shown, room = [], ""
    for inside, name in re.findall(r"^(│   )?[├└]── (\S+)", drawing, re.MULTILINE):
        room = room if inside else name if name.endswith("/") else ""
        shown += [] if name.endswith("/") else [room + name]
    files = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    assert sorted(shown) == sorted(name for name in files if not name.endswith("/__init__.py"))


def test_a_layer_imports_only_from_those_above_it_in_the_table():
    above: set[str] = set()
    for room, words in LAYERS.items():
        assert {word.partition(".")[0] for word in words.split()} <= above
        above.add(room)
    assert above >= {*LATE, *LATE.values()}


def test_no_layer_may_import_what_it_does_not():
    used: dict[str, set[str]] = {}
    for path, node in nodes_of(read_tree(), ast.Import, ast.ImportFrom):
        used.setdefault(room_of(path), set()).update(rooms_in(path, node))
    for room, words in LAYERS.items():
        assert [
            word for word in words.split() if not any(f"{other}.".startswith(f"{word}.") for other in used[room])
        ] == []


def test_the_page_has_the_same_layers():
    page = (PACKAGE.parent / "docs" / "how-it-works.md").read_text("utf-8")
    table = page.partition("| room | imports |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)
    assert [(room, re.findall(r"[\w.]+(?=`)", cell)) for room, cell in rows] == [
        (room, words.split()) for room, words in LAYERS.items()
    ]
    assert all(f"`{room}` imports `{other}`" in " ".join(page.split()) for room, other in LATE.items())


# -- documents ---------------------------------------------------------------------------------------------------------

DOCS = PACKAGE.parent / "docs"
FILE = re.compile(r"[a-z_]+(?:/[a-z_]+)*\.py")
CLASS = re.compile(r"\b(?:[A-Z][a-z]+){2,}\b")
HEADINGS = ("## A datapoint's journey", "## Start and end of a worker")


def figure_below(heading: str) -> str:
    page = (DOCS / "how-it-works.md").read_text("utf-8")
    return page.partition(heading)[2].partition("```text\n")[2].partition("```")[0]


@pytest.mark.parametrize("page", ["how-it-works.md", "glossary.md", "contributing.md"])
def test_every_file_that_a_page_names_exists(page):
    named = {name for name in FILE.findall((DOCS / page).read_text("utf-8")) if "/" in name}
    assert named
    missing = [name for name in named if not ((PACKAGE / name).exists() or (PACKAGE.parent / name).exists())]
    assert missing == []


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_figures_name_classes_and_files_that_exist(heading):
    tree = read_tree()
    classes = {node.name for _, node in nodes_of(tree, ast.ClassDef)}
    figure = figure_below(heading)
    named = set(CLASS.findall(figure))
    assert named and named <= classes
    assert set(FILE.findall(figure)) <= tree.keys()


def test_the_walk_of_a_small_datapoint_is_short():
    """From the worker's `yield` to the consumer's loop, over one channel and without the arena."""
    figure = figure_below(HEADINGS[0])
    files = set(FILE.findall(figure)) - {"transport/arena.py", "transport/local_channel.py"}
    assert len(files) <= 12 and len(set(CLASS.findall(figure))) <= 14


def test_no_hierarchy_of_a_public_class_is_longer_than_six():
    import dataflow

    def depth(cls: type) -> int:
        return 1 + max(map(depth, cls.__bases__), default=0)

    public = [found for name in dataflow.__all__ if isinstance(found := getattr(dataflow, name), type)]
    assert [cls.__name__ for cls in public if depth(cls) > 6] == []
