"""Source rewriter: changes the imports of a program, dotted names and parameters of older versions, and nothing else.

libcst parses the program and resolves its names. The changes are edits of byte ranges of the source, so that comments,
formatting and everything that is not edited stay as they are.

Guarantees:

- A name that the program imports stays: what is called otherwise in this library is imported under the old name.
- The result is parsed again before it is returned; names that the changes leave undefined are reported.
- Rewriting a result changes nothing.
"""

from __future__ import annotations

import ast
import ipaddress
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal

from dataflow.compat.old_names import (
    GONE_KEYWORDS,
    KEYWORD_ONLY,
    KEYWORDS,
    RENAMED_METHODS,
    REPLACED_PACKAGES,
    TAKES_OWN_FLOWS,
    TAKES_OWN_FLOWS_AS,
    WORTH_A_LOOK,
    WORTH_A_LOOK_AT_LOAD,
    Missing,
    Moved,
    MovedModule,
    is_ours,
    star_names,
    target_of,
)
from dataflow.system.extras import optional

__all__ = ["Finding", "Rewritten", "rewritten"]

_BOM: Final = b"\xef\xbb\xbf"
_CONCERNED: Final = re.compile(r"\b(tensorpack|dataflow|parallelisation)\b")
"""What a program contains if anything in it may have to change; resolving the names of all others would take long."""

_LINE: Final = 88  # columns of an import that is laid out again, before it is split
_OURS: Final = "dataflow"
_OURS_IF_TAKEN: Final = "dataflow_runners"  # a local name for a module in which `dataflow` is something else
_BIND: Final = {"RemoteDataZMQ": (0, True), "send_dataflow_zmq": (1, False)}
"""Where the addresses begin among the arguments, and whether it binds to them by default."""

_NOT_OURS: Final = (
    "this library has no such name; if it is of a module of your own that is called dataflow, rename that module"
)
_WANTS_ITS_OWN: Final = "accepts only tensorpack's own dataflows: pass it tensorpack.dataflow.DataFromIterable(df)"


@dataclass(frozen=True, order=True)
class Finding:
    """Something in a program that the rewriter does not change.

    Attributes:
        line: Line, from 1.
        column: Column, from 1.
        kind: ``"left"`` for what has to be changed by hand, ``"look"`` for what may have another effect now.
        name: The name in question.
        text: Why, and what to do.
    """

    line: int
    column: int
    kind: Literal["left", "look"]
    name: str
    text: str


@dataclass(frozen=True)
class Rewritten:
    """A program after the changes.

    Attributes:
        source: The program, in its encoding.
        before: The program as it was, as text.
        after: `source` as text.
        findings: What is left, in the order of lines.
    """

    source: bytes
    before: str
    after: str
    findings: tuple[Finding, ...]


def rewritten(source: bytes, *, own: str | None = None) -> Rewritten:
    """Rewrite a program.

    Args:
        source: A Python module, in the encoding that it declares.
        own: A module `dataflow` of the program's own project, which this library would be confused with. The program
            then stays as it is, and the module is reported if there is anything to change.

    Raises:
        ValueError: The source is not valid Python 3; the message has line and column.
        MissingExtra: libcst is not installed.
    """
    cst = optional("libcst", "migrate", "Migrating programs needs")
    bom = _BOM if source.startswith(_BOM) else b""
    module = _parse(cst, source[len(bom) :])
    before = module.code
    if not _CONCERNED.search(before):
        return Rewritten(source, before, before, ())
    rewriter = _Rewriter(cst, module, REPLACED_PACKAGES - {_OURS} if own else REPLACED_PACKAGES)
    rewriter.run()
    if own and rewriter.edits:
        rewriter.find_clash(own)
    after = _edit(before, rewriter.edits)
    if after != before:
        rewriter.find_unbound(cst.parse_module(after))
    encoded = bom + after.encode(module.encoding)
    return Rewritten(encoded, before, after, tuple(sorted(set(rewriter.findings))))


def _edit(before: str, edits: dict[tuple[int, int], str]) -> str:
    """Return a text after edits: each replaces the bytes from a start to an end of the text in UTF-8."""
    data = before.encode()
    parts, position = [], 0
    for (start, end), text in sorted(edits.items()):
        assert start >= position, "edits overlap"
        parts += [data[position:start], text.encode()]
        position = end
    return b"".join([*parts, data[position:]]).decode()


def _parse(cst: Any, source: bytes) -> Any:
    try:
        return cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        line, column, reason = error.raw_line, error.raw_column + 1, str(error.message).partition("\n")[0]
        try:
            ast.parse(source)
        except SyntaxError as shorter:
            line, column, reason = shorter.lineno or line, shorter.offset or column, shorter.msg
        raise ValueError(
            f"line {line}, column {column} is not valid Python 3 ({reason.rstrip('.')}); "
            "convert a program for Python 2 first, with 2to3 of Python 3.12 or earlier"
        ) from error
    except (UnicodeError, LookupError, SyntaxError) as error:
        raise ValueError(f"it cannot be decoded: {error}") from error


@dataclass
class _Binding:
    """An import of a name or a module by a program, and where the program uses it.

    Attributes:
        dotted: The full name of what is bound.
        local: The name by which the program refers to it; dotted for ``import a.b``.
        statement: The import statement.
        alias: The part of the statement that binds it.
        uses: The outermost attribute chains that begin with it, each as (node, dotted text as written).
        is_shared: Whether the program binds `local` in another way, too.
        is_other: Whether it binds it to something else than None in another way: its uses may mean that.
        in_strings: Whether it is used inside of a string, as in an annotation.
    """

    dotted: str
    local: str
    statement: Any
    alias: Any
    uses: list[tuple[Any, str]] = field(default_factory=list)
    is_shared: bool = False
    is_other: bool = False
    in_strings: bool = False


class _Rewriter:
    """One run over one program: collects edits and findings."""

    def __init__(self, cst: Any, module: Any, packages: frozenset[str]) -> None:
        """`packages` are those whose imports may have to change."""
        metadata = optional("libcst.metadata", "migrate", "Migrating programs needs")
        self.cst = cst
        self.metadata = metadata
        self.packages = packages
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self.spans = wrapper.resolve(metadata.ByteSpanPositionProvider)
        self.scopes = [scope for scope in set(wrapper.resolve(metadata.ScopeProvider).values()) if scope is not None]
        self.code: bytes = self.module.code.encode()
        self.nodes = list(_walk(self.module))
        self.parents = {child: node for node in self.nodes for child in node.children}
        self.edits: dict[tuple[int, int], str] = {}  # by start and end, in bytes
        self.findings: list[Finding] = []
        self.names: dict[Any, str] = {}  # by node: the name here of the class or function that it is
        self.perhaps: dict[Any, str] = {}  # the same, where the program also gives the name another meaning
        self.theirs: dict[Any, str] = {}  # by node: the name of tensorpack, outside of its dataflow, that it is
        self.bindings: list[_Binding] = []
        self.unresolved: dict[Any, None] = {}  # names that the program does not define: star imports may bring them
        self.seen: set[tuple[Any, str]] = set()  # import statements after the changes, each with its block

    def run(self) -> None:
        self._collect()
        for statement in self.nodes:
            if isinstance(statement, self.cst.ImportFrom) and not statement.relative:
                if isinstance(statement.names, self.cst.ImportStar):
                    self._star(statement)
                else:
                    self._import_from(statement)
            elif isinstance(statement, self.cst.Import):
                self._import(statement)
        self._trainers()
        self._calls()

    # -- what the program binds and uses -------------------------------------------------------------------------------

    def _collect(self) -> None:
        for scope in self.scopes:
            for assignment in scope.assignments:
                if isinstance(assignment, self.metadata.ImportAssignment):
                    self._bind(scope, assignment)
            for access in scope.accesses:
                if not access.referents and isinstance(access.node, self.cst.Name):
                    self.unresolved[access.node] = None

    def _bind(self, scope: Any, assignment: Any) -> None:
        statement, alias = assignment.node, self._alias_of(assignment)
        if alias is None:
            return
        name = self._dotted(alias.name)
        if isinstance(statement, self.cst.ImportFrom):
            if statement.relative:
                return
            name = f"{self._dotted(statement.module)}.{name}"
        if name.partition(".")[0] not in self.packages:
            return
        local = alias.asname.name.value if alias.asname is not None else self._dotted(alias.name)
        found = _Binding(name, local, statement, alias)
        others = [other for other in scope[local.partition(".")[0]] if not self._is_a_predecessor(other)]
        found.is_shared = bool(others)
        found.is_other = not all(self._is_none(other) for other in others)
        chains: dict[Any, None] = {}
        for other in scope.assignments:  # `import a.b` also binds `a`: what is used of that is a use of the import, too
            if other is assignment or (isinstance(other, self.metadata.ImportAssignment) and other.node is statement):
                if other is not assignment and not local.startswith(f"{other.name}."):
                    continue
                for access in other.references:
                    if isinstance(access.node, self.cst.Name | self.cst.Attribute):
                        chains[self._chain(access.node)] = None
                    else:
                        found.in_strings = True
        found.uses = [(chain, self._dotted(chain)) for chain in chains]
        self.bindings.append(found)

    def _is_none(self, assignment: Any) -> bool:
        """Whether an assignment is `name = None`, as where an import is optional."""
        target = self.parents.get(getattr(assignment, "node", None))
        statement = self.parents.get(target)
        return (
            isinstance(target, self.cst.AssignTarget)
            and isinstance(statement, self.cst.Assign)
            and self._dotted(statement.value) == "None"
        )

    def _alias_of(self, assignment: Any) -> Any:
        # `import a.b` also makes assignments to its beginnings, which bind nothing else.
        for alias in assignment.node.names:
            bound = alias.asname.name if alias.asname is not None else alias.name
            if self._dotted(bound) == assignment.name:
                return alias
        return None

    def _dotted(self, node: Any) -> str:
        """The text of a name or attribute chain, without spaces, up to the first part that is something else."""
        if isinstance(node, self.cst.Name):
            return str(node.value)
        if isinstance(node, self.cst.Attribute):
            return f"{self._dotted(node.value)}.{node.attr.value}"
        return "?"

    def _chain(self, node: Any) -> Any:
        """The outermost attribute chain that begins with `node`."""
        while True:
            parent = self.parents.get(node)
            if not (isinstance(parent, self.cst.Attribute) and parent.value is node):
                return node
            node = parent

    def _head(self, chain: Any, length: int) -> Any:
        """The first `length` names of an attribute chain."""
        for _ in range(self._dotted(chain).count(".") + 1 - length):
            chain = chain.value
        return chain

    # -- imports -------------------------------------------------------------------------------------------------------

    def _import_from(self, statement: Any) -> None:
        module = self._dotted(statement.module)
        if module.partition(".")[0] not in self.packages:
            return
        moved: dict[str, list[tuple[Any, str]]] = {}  # module -> aliases, each with its new text
        modules: list[str] = []
        staying: list[Any] = []
        for alias in statement.names:
            name = str(alias.name.value)
            target = target_of(f"{module}.{name}")
            binding = self._binding(alias)
            if isinstance(target, Missing):
                self._find_missing(alias, binding, f"{module}.{name}", target)
                staying.append(alias)
            elif isinstance(target, MovedModule):
                local = alias.asname.name.value if alias.asname is not None else name
                modules.append(f"import {target.module}" + (f" as {local}" if local != target.module else ""))
                self._uses_of_module(binding, local, f"{module}.{name}", local)
            elif isinstance(target, Moved):
                moved.setdefault(target.module, []).append((alias, self._alias_text(alias, target, binding)))
                if module != _OURS:
                    self._look(alias, target.name)
            else:
                staying.append(alias)
                if module == _OURS and not is_ours(name):
                    self._find(alias, "left", name, _NOT_OURS)
        if module == _OURS and not modules:
            # Names that are left have to stay in this statement: there is no other package to import them from.
            self._rename_in_place(moved.get(_OURS, []))
        elif not moved and not modules:
            return
        elif len(moved) == 1 and not modules and not staying and not _repeats(next(iter(moved.values()))):
            ((target_module, aliases),) = moved.items()
            self._replace(statement.module, target_module)
            self._rename_in_place(aliases)
        else:
            texts = [self._from_text(statement, now, aliases) for now, aliases in moved.items()]
            texts += list(dict.fromkeys(modules))
            if staying:
                as_they_are = [(alias, self._alias_as_is(alias)) for alias in staying]
                texts.append(self._from_text(statement, module, as_they_are))
            self._replace_statement(statement, texts)

    def _alias_text(self, alias: Any, target: Moved, binding: _Binding | None) -> str:
        """The alias in the new import; also notes what the uses of its name are."""
        local = str((alias.asname or alias).name.value)
        if binding is not None:
            for chain, text in binding.uses:
                (self.perhaps if binding.is_other else self.names)[self._head(chain, 1)] = target.name
                self._look_at_attribute(chain, text, target.name)
        return _named_as(target.name, local)

    def _uses_of_module(self, binding: _Binding | None, written: str, dotted: str, local: str) -> bool:
        """Rewrite attribute chains below a module; True if none of them is left as it was.

        Args:
            binding: The import of the module.
            written: What the chains begin with.
            dotted: The full name of that module.
            local: What the module is called from now on.
        """
        if binding is None:
            return True
        complete = not binding.in_strings
        for chain, text in binding.uses:
            if text != written and not text.startswith(f"{written}."):
                complete = False
                continue
            full = dotted + text[len(written) :]
            target = target_of(full)
            # Parts of the chain that the target replaces.
            length = 0 if target is None else target.length - (dotted.count(".") - written.count("."))
            if isinstance(target, Missing):
                complete = False
                if target.is_known or not binding.is_shared:  # else it may be an attribute of something else
                    self._find(chain, "left", text, target.text)
            elif isinstance(target, Moved) and length > 0:
                head = self._head(chain, length)
                self.names[head] = target.name
                now = f"{local}.{target.name}"
                if self._dotted(head) != now:
                    self._replace(head, now)
                self._look_at_attribute(chain, text, target.name)
                if not full.startswith(f"{_OURS}.") or full.startswith(f"{_OURS}.{_OURS}."):
                    self._look(head, target.name)
            elif isinstance(target, MovedModule) and length > 0 and text.count(".") + 1 == length:
                if text != local:
                    self._replace(chain, local)
            elif full.startswith(f"{_OURS}."):
                if not binding.is_shared and not is_ours(full.split(".")[1]):
                    self._find(chain, "left", text, _NOT_OURS)
            else:
                complete = False
        return complete

    def _import(self, statement: Any) -> None:
        added: list[str] = []
        replaced: dict[Any, str] = {}
        renamed: dict[Any, str] = {}  # which the program goes on calling by its own name for it
        for alias in statement.names:
            dotted = self._dotted(alias.name)
            if dotted.partition(".")[0] not in self.packages:
                continue
            target = target_of(dotted)
            binding = self._binding(alias)
            local = alias.asname.name.value if alias.asname is not None else None
            if isinstance(target, Missing):
                self._find_missing(alias, binding, dotted, target)
            binds_all = local is None and dotted.startswith("tensorpack.")  # all of tensorpack can be used after it
            if dotted == _OURS:
                self._uses_of_module(binding, local or _OURS, _OURS, local or _OURS)
            elif isinstance(target, MovedModule) and local is not None:
                renamed[alias] = target.module
                self._uses_of_module(binding, local, dotted, local)
            elif isinstance(target, MovedModule) or binds_all or self._uses_dataflow(binding, local or dotted):
                bound, text = self._bound()
                name = "tensorpack" if binds_all else dotted
                num_edits = len(self.edits)
                is_complete = self._uses_of_module(binding, local or name, name, bound)
                if is_complete and (dotted == "tensorpack" or isinstance(target, MovedModule)):
                    replaced[alias] = text
                elif len(self.edits) > num_edits:
                    added.append(text)
        if replaced or added:  # the statement is laid out again
            replaced |= {alias: f"import {module} as {alias.asname.name.value}" for alias, module in renamed.items()}
        else:
            for alias, module in renamed.items():
                self._replace(alias.name, module)
        self._rewrite_import(statement, replaced, added)

    def _uses_dataflow(self, binding: _Binding | None, written: str) -> bool:
        """Whether a program that imports tensorpack as `written` uses its dataflow."""
        uses = binding.uses if binding is not None and binding.dotted == "tensorpack" else []
        return any(target_of("tensorpack" + text[len(written) :]) is not None for _, text in uses)

    def _bound(self) -> tuple[str, str]:
        """The local name for this library in this program, and the statement that binds it."""
        taken = any(
            assignment.name == _OURS and not self._is_a_predecessor(assignment)
            for scope in self.scopes
            for assignment in scope.assignments
        )
        return (_OURS_IF_TAKEN, f"import {_OURS} as {_OURS_IF_TAKEN}") if taken else (_OURS, f"import {_OURS}")

    def _is_a_predecessor(self, assignment: Any) -> bool:
        if not isinstance(assignment, self.metadata.ImportAssignment):
            return False
        found = {name.name.partition(".")[0] for name in assignment.get_qualified_names_for(assignment.name)}
        return found <= REPLACED_PACKAGES

    def _rewrite_import(self, statement: Any, replaced: dict[Any, str], added: list[str]) -> None:
        if not replaced and not added:
            self.seen.add((self.parents[self.parents[statement]], self._code(statement)))
            return
        if len(statement.names) == 1 and replaced:
            self._replace_statement(statement, list(replaced.values()))
            return
        staying = [alias for alias in statement.names if alias not in replaced]
        texts = []
        if staying:
            texts.append("import " + ", ".join(self._alias_as_is(alias) for alias in staying))
        texts += [text for text in dict.fromkeys([*replaced.values(), *added]) if text not in texts]
        self._replace_statement(statement, texts)

    def _star(self, statement: Any) -> None:
        module = self._dotted(statement.module)
        if module.partition(".")[0] not in self.packages:
            return
        target = target_of(module)
        brought = star_names(module)
        whole = module in {"tensorpack", "tensorpack.utils", "tensorpack.utils.utils"}  # which bring other names, too
        if not whole and not isinstance(target, MovedModule) and module != _OURS:
            if isinstance(target, Missing):
                self._find(statement, "left", f"{module}.*", target.text)
            return
        explicit: set[str] = set()
        missing: set[str] = set()
        others = False
        for node in self.unresolved:
            name = str(node.value)
            meant = target_of(f"{module}.{name}") if name in brought or whole else None
            if isinstance(meant, Moved):
                explicit.add(_named_as(meant.name, name))
                self.names[node] = meant.name
                chain = self._chain(node)
                self._look_at_attribute(chain, self._dotted(chain), meant.name)
                if module != _OURS:
                    self._look(node, meant.name)
            elif isinstance(meant, Missing):
                self._find(node, "left", name, meant.text)
                missing.add(name)
            else:
                others = True
        renamed = {text for text in explicit if " as " in text}  # which a star import of this library does not bring
        if whole:
            if explicit:
                kept = [self._code(statement)] if others or missing else []
                names = renamed if self._star_follows(statement) else explicit
                self._replace_statement(statement, [*kept, *_import_of(names)])
            return
        assert isinstance(target, MovedModule) or module == _OURS
        now = target.module if isinstance(target, MovedModule) else _OURS
        if module != now == _OURS and self._would_be_hidden(brought):
            texts = _import_of(explicit)
        else:
            texts = [f"from {now} import *", *_import_of(renamed)]
        if missing and module != now and not module.startswith(_OURS):
            texts.append(f"from {module} import {', '.join(sorted(missing))}")
        self._replace_statement(statement, texts)

    def _would_be_hidden(self, brought: frozenset[str]) -> bool:
        """Whether a star import of this library would hide a name of the program that the one before did not hide."""
        new = set(sys.modules[_OURS].__all__) - brought
        return any(isinstance(node, self.cst.Name) and node.value in new for node in self.nodes)

    def _star_follows(self, statement: Any) -> bool:
        """Whether a later star import brings the names of the dataflow."""
        after = self.spans[statement].start
        modules = (self._dotted(other.module) for other in self._stars(self.nodes) if self.spans[other].start > after)
        return any(module == _OURS or isinstance(target_of(module), MovedModule) for module in modules)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _calls(self) -> None:
        for node in self.nodes:
            if isinstance(node, self.cst.Call):
                self._method(node)
                name = self._called(node, self.names)
                if name is not None:
                    self._arguments(node, name)
                elif (name := self._called(node, self.perhaps)) is not None:
                    self._arguments_perhaps(node, name)
                elif (name := self._called(node, self.theirs)) in TAKES_OWN_FLOWS_AS:
                    self._arguments_of_a_trainer(node, name)

    def _called(self, call: Any, names: dict[Any, str]) -> str | None:
        """The name, of `names`, of the class whose constructor gets the arguments of `call`."""
        if (name := names.get(call.func)) is not None:
            return name
        if self._dotted(call.func).rpartition(".")[2] == "partial" and call.args:
            return names.get(call.args[0].value)
        func = call.func
        if isinstance(func, self.cst.Attribute) and func.attr.value == "__init__":
            owner = func.value
            if (name := names.get(owner)) is not None:
                return name
            if isinstance(owner, self.cst.Call) and self._dotted(owner.func) == "super":
                return self._base_of_class_around(call, names)
        return None

    def _base_of_class_around(self, node: Any, names: dict[Any, str]) -> str | None:
        while node is not None and not isinstance(node, self.cst.ClassDef):
            node = self.parents.get(node)
        if node is None:
            return None
        return next((name for base in node.bases if (name := names.get(base.value))), None)

    def _arguments(self, call: Any, name: str) -> None:
        keywords = KEYWORDS.get(name, {})
        given = {self._keyword(argument) for argument in call.args} - {""}
        for argument in call.args:
            if now := keywords.get(self._keyword(argument)):
                if now in given:
                    self._find(argument, "left", self._keyword(argument), f"is called {now}, which is given, too")
                else:
                    self._replace(argument.keyword, now)
        self._gone(call, name, given)
        if self._dotted(call.func).rpartition(".")[2] in {"partial", "__init__"}:
            return  # the positions of its arguments are others
        positional = [argument for argument in call.args if argument.keyword is None]
        if any(argument.star for argument in positional):
            return
        for position, keyword in KEYWORD_ONLY.get(name, {}).items():
            if position < len(positional) and keyword not in given:
                start = self.spans[positional[position].value].start
                self.edits[start, start] = f"{keyword}="

    def _gone(self, call: Any, name: str, given: set[str]) -> None:
        """Report arguments that this library refuses."""
        gone = GONE_KEYWORDS.get(name, {})
        for argument in call.args:
            keyword = self._keyword(argument)
            if keyword in gone and not (keyword == "format" and self._code(argument.value) == "None"):
                self._find(call, "left", f"{name}({keyword}=…)", gone[keyword])
        if name == "send_dataflow_zmq":
            for argument in call.args[3:4]:
                given_as = self._code(argument.value)
                if not (self._keyword(argument) or argument.star or given_as == "None"):
                    self._find(argument, "left", f"{name}(…, {given_as})", f"is the format: {gone['format']}")
        if name == "DataFromGenerator" and len(call.args) > 1 and not given & {"size", "gen"}:
            self._find(call, "left", f"{name}(…, size)", gone["size"])
        if name in _BIND and not given & {"curve", "insecure"}:
            at, binds = _BIND[name]
            bind = next((self._dotted(a.value) for a in call.args if self._keyword(a) == "bind"), str(binds))
            urls = [a.value for a in call.args[at:] if self._keyword(a) in {"", "addr", "addr1", "addr2"}]
            open_ = [url for url in urls if isinstance(url, self.cst.SimpleString) and _is_open(url.evaluated_value)]
            if bind != "False" and open_:
                text = "raises here: other machines can reach this address. Pass keys (curve=), or insecure=True"
                self._find(call, "left", f"{name}({self._code(open_[0])})", text)

    def _keyword(self, argument: Any) -> str:
        return str(argument.keyword.value) if argument.keyword is not None else ""

    def _arguments_perhaps(self, call: Any, name: str) -> None:
        """Report what would be rewritten if it were certain that this is a call of our class."""
        written = self._dotted(call.func)
        for argument in call.args:
            if now := KEYWORDS.get(name, {}).get(self._keyword(argument)):
                text = f"is called {now} in this library; it stays because {written} has another meaning here, too"
                self._find(argument, "left", self._keyword(argument), text)

    def _arguments_of_a_trainer(self, call: Any, name: str) -> None:
        first = TAKES_OWN_FLOWS_AS[name]
        if any(self._keyword(argument) in {first, ""} and not argument.star for argument in call.args):
            self._find(call, "left", f"{name}({first}=…)", _WANTS_ITS_OWN)

    def _method(self, call: Any) -> None:
        """Rename methods of `TestDataSpeed`, which is usually called at once, and often without a variable."""
        func = call.func
        if not isinstance(func, self.cst.Attribute) or "TestDataSpeed" not in self.names.values():
            return
        if now := RENAMED_METHODS.get(func.attr.value):
            self._replace(func.attr, now)

    # -- findings ------------------------------------------------------------------------------------------------------

    def _look(self, node: Any, name: str) -> None:
        if name in WORTH_A_LOOK:
            self._find(node, "look", name, WORTH_A_LOOK[name])

    def _look_at_attribute(self, chain: Any, text: str, name: str) -> None:
        """Report `load` of a serializer, unless the call already says whether pickles are accepted."""
        if name not in WORTH_A_LOOK_AT_LOAD or not text.endswith(".load"):
            return
        call = self.parents.get(chain)
        arguments = call.args if isinstance(call, self.cst.Call) and call.func is chain else ()
        if any(self._keyword(argument) == "pickle" for argument in arguments):
            return
        self._find(chain, "look", f"{name}.load", WORTH_A_LOOK_AT_LOAD[name])

    def _trainers(self) -> None:
        """Find the names of tensorpack that are not of its dataflow, and report those that accept only its own."""
        stars = any(star.partition(".")[0] == "tensorpack" for star in self._modules_of_stars(self.nodes))
        found = [(node, str(node.value)) for node in self.unresolved] if stars else []
        for binding in self.bindings:
            for chain, text in binding.uses:
                full = binding.dotted + text[len(binding.local) :] if text.startswith(binding.local) else text
                if full.startswith("tensorpack.") and target_of(full) is None:
                    found.append((chain, full.rpartition(".")[2]))
        for node, name in found:
            self.theirs[node] = name
            if name in TAKES_OWN_FLOWS:
                self._find(node, "left", name, _WANTS_ITS_OWN)

    def _find_missing(self, alias: Any, binding: _Binding | None, dotted: str, target: Missing) -> None:
        """Report an import of something that has no counterpart; or its uses, where there is more to say about them."""
        said = False
        for chain, text in binding.uses if binding is not None else ():
            meant = target_of(dotted + text[len(binding.local) :]) if binding is not None else None
            if isinstance(meant, Missing) and meant.text != target.text and meant.is_known:
                self._find(chain, "left", text, meant.text)
                said = True
        if not said:
            self._find(alias, "left", self._dotted(alias.name), target.text)

    def find_clash(self, own: str) -> None:
        """Give up all changes, because a module of the project would be imported in the place of this library."""
        start = min(start for start, _ in self.edits)
        self.edits.clear()
        text = (
            f"{own} has the name of this library, and is imported in its place: rename it, and the imports of it, and "
            "migrate then. Nothing was changed in this file"
        )
        self._find_at(start, "left", _OURS, text)

    def find_unbound(self, after: Any) -> None:
        """Report names that nothing defines after the changes, and that something may have defined before."""
        wrapper = self.metadata.MetadataWrapper(after, unsafe_skip_copy=True)
        spans = wrapper.resolve(self.metadata.ByteSpanPositionProvider)
        scopes = {scope for scope in wrapper.resolve(self.metadata.ScopeProvider).values() if scope is not None}
        before, now = self._modules_of_stars(self.nodes), self._modules_of_stars(_walk(wrapper.module))
        brought = {name for star in before for name in star_names(star) if star.partition(".")[0] in self.packages}
        brings = {name for star in now & {_OURS} for name in import_module(star).__all__}
        undefined = {str(node.value) for node in self.unresolved}
        for access in {access for scope in scopes for access in scope.accesses if not access.referents}:
            node = access.node
            if not isinstance(node, self.cst.Name):
                continue
            name = str(node.value)
            if name not in brings and (name not in undefined or (name in brought and not before & now)):
                text = "nothing defines it after the changes: import it by hand, or define it"
                self._find_at(self._origin(spans[node].start), "left", name, text)

    def _stars(self, nodes: Iterable[Any]) -> Iterator[Any]:
        """All star imports, except relative ones."""
        froms = (node for node in nodes if isinstance(node, self.cst.ImportFrom) and not node.relative)
        return (node for node in froms if isinstance(node.names, self.cst.ImportStar))

    def _modules_of_stars(self, nodes: Iterable[Any]) -> set[str]:
        return {self._dotted(node.module) for node in self._stars(nodes)}

    def _origin(self, offset: int) -> int:
        """The offset in the program before the changes of an offset after them."""
        shift = 0
        for (start, end), text in sorted(self.edits.items()):
            if start + shift + len(text.encode()) > offset:
                return min(offset - shift, end) if start + shift <= offset else offset - shift
            shift += len(text.encode()) - (end - start)
        return offset - shift

    def _find(self, node: Any, kind: Literal["left", "look"], name: str, text: str) -> None:
        self._find_at(self.spans[node].start, kind, name, text)

    def _find_at(self, offset: int, kind: Literal["left", "look"], name: str, text: str) -> None:
        before = self.code[:offset].decode()
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        self.findings.append(Finding(line, column, kind, name, text))

    # -- edits ---------------------------------------------------------------------------------------------------------

    def _binding(self, alias: Any) -> _Binding | None:
        return next((binding for binding in self.bindings if binding.alias is alias), None)

    def _code(self, node: Any) -> str:
        return str(self.module.code_for_node(node)).strip()

    def _replace(self, node: Any, text: str) -> None:
        span = self.spans[node]
        start, end = span.start, span.start + span.length
        if self.code[start:end].decode() != text:
            self.edits[start, end] = text

    def _rename_in_place(self, aliases: list[tuple[Any, str]]) -> None:
        for alias, text in aliases:
            self._replace(alias.name, text if alias.asname is None else text.partition(" as ")[0])

    def _alias_as_is(self, alias: Any) -> str:
        name = self._dotted(alias.name)
        return name if alias.asname is None else f"{name} as {alias.asname.name.value}"

    def _from_text(self, statement: Any, module: str, aliases: list[tuple[Any, str]]) -> str:
        """A from-import of some aliases of `statement`, with their comments; in one line if it fits."""
        texts: dict[str, Any] = {}
        for alias, text in aliases:
            texts.setdefault(text, alias)
        comments = {text: comment for text, alias in texts.items() if (comment := self._comment_after(alias))}
        start, indent = f"from {module} import ", self._indent(statement)
        in_a_line = start + ", ".join(texts)
        if statement.lpar is None or "\n" not in self._code(statement):
            return in_a_line
        if not comments and len(indent) + len(in_a_line) <= _LINE:
            return in_a_line
        newline = str(self.module.default_newline)
        lines = [f"{indent}    {text},{'  ' + comments[text] if text in comments else ''}" for text in texts]
        return newline.join([f"{start}(", *lines, f"{indent})"])

    def _comment_after(self, alias: Any) -> str:
        comma = alias.comma
        whitespace = getattr(comma, "whitespace_after", None)
        first = getattr(whitespace, "first_line", None)
        comment = getattr(first, "comment", None)
        return str(comment.value) if comment is not None else ""

    def _indent(self, statement: Any) -> str:
        start = self.spans[statement].start
        return str(self.code[self.code.rfind(b"\n", 0, start) + 1 : start], "utf-8")

    def _replace_statement(self, statement: Any, texts: list[str]) -> None:
        """Replace a statement by several, each in a line of its own where the statement has one.

        A statement that stands before it in its block is not repeated.
        """
        line = self.parents[statement]
        block = self.parents[line]
        indent = self._indent(statement)
        alone = len(line.body) == 1 and not indent.strip()
        fresh = [text for text in texts if (block, text) not in self.seen]
        self.seen |= {(block, text) for text in texts}
        if fresh:
            separator = f"{self.module.default_newline}{indent}" if alone else "; "
            self._replace(statement, separator.join(fresh))
        elif alone and line.trailing_whitespace.comment is None and not line.leading_lines:
            span = self.spans[statement]
            start = self.code.rfind(b"\n", 0, span.start) + 1
            end = self.code.find(b"\n", span.start + span.length) + 1 or len(self.code)
            self.edits[start, end] = ""
        else:
            self._replace(statement, texts[-1] if texts else "pass")


def _walk(node: Any) -> Iterator[Any]:
    """Yield a node and all below it, in the order of the source."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _named_as(name: str, local: str) -> str:
    """A name in an import that binds it to `local`."""
    return name if name == local else f"{name} as {local}"


def _import_of(names: set[str]) -> list[str]:
    return [f"from {_OURS} import {', '.join(sorted(names))}"] if names else []


def _repeats(aliases: list[tuple[Any, str]]) -> bool:
    return len({text for _, text in aliases}) < len(aliases)


def _is_open(address: str) -> bool:
    """Whether other machines reach an address that is bound to."""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if not address.startswith("tcp://") or host in {"localhost", "lo"}:
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
