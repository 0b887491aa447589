"""The source of code that runs, as a syntax tree that is written alike by every version of Python.

Owned here: finding the definition that a code object was compiled from, and writing a tree as text. Called by ``plan.code``.
A definition is only given where compiling the file's text makes the very bytecode that runs: a file that was edited
since it was loaded, a function that a tool has rewritten and code of ``exec`` have none.

Comments, formatting, docstrings and annotations are no part of the text.
"""

from __future__ import annotations
import __future__

import ast
import functools
import json
import linecache
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUTURE = __future__.annotations.compiler_flag
# What only some versions of Python have, what says nothing of what the code does, and what is looked at where it stands.
_SKIPPED = {"ctx", "kind", "type_comment", "type_params", "annotation", "returns", "type_ignores"}
_LAST_TEXTS = 64
LAST_NODES = 4_096
"""Of trees that have been read: a plan's code is read when it is made and when it is stored, each time from the same trees."""


@dataclass(frozen=True, eq=False)
class Text:
    """A file's text, as it was compiled."""

    tree: ast.Module
    codes: tuple[types.CodeType, ...]
    """Of all functions, lambdas and classes in it, however deep."""

    def definition(self, code: types.CodeType) -> Definition | None:
        """Where in the text this code is from; None where the text does not make this code."""
        known = self._found.get(id(code))
        if known is None:
            known = self._found[id(code)] = code, self._find(code)
        return known[1]

    def _find(self, code: types.CodeType) -> Definition | None:
        found = [one for one in self._codes.get(code.co_qualname, ()) if is_same(one, code)]
        there = [one for one in found if one.co_firstlineno == code.co_firstlineno and _spans(one) == _spans(code)]
        nodes = [self._node(one) for one in there or found]
        if not nodes or any(node is None for node in nodes):
            return None
        # Several lambdas of one line may be the same code: then they must be the same text, too.
        return nodes[0] if len({text_of(node) for node in nodes if node is not None}) == 1 else None

    @functools.cached_property
    def _found(self) -> dict[int, tuple[types.CodeType, Definition | None]]:
        """What was looked up already, by the number of the code object, which is held so that no other one gets its number."""
        return {}

    @functools.cached_property
    def _codes(self) -> dict[str, list[types.CodeType]]:
        found: dict[str, list[types.CodeType]] = {}
        for code in self.codes:
            found.setdefault(code.co_qualname, []).append(code)
        return found

    def class_named(self, qualname: str) -> ast.ClassDef | None:
        """The one class of this name; None where there are several, or none."""
        found = self._classes.get(qualname, ())
        return found[0] if len(found) == 1 else None

    @functools.cached_property
    def _classes(self) -> dict[str, list[ast.ClassDef]]:
        found: dict[str, list[ast.ClassDef]] = {}
        for name, node in _named(self.tree, ""):
            found.setdefault(name, []).append(node)
        return found

    def binding(self, name: str) -> list[ast.stmt]:
        """The statements at module level that bind a name or change its value."""
        return self._bindings.get(name, [])

    @functools.cached_property
    def _bindings(self) -> dict[str, list[ast.stmt]]:
        found: dict[str, list[ast.stmt]] = {}
        for statement in _of_level(self.tree.body):
            for name in _bound(statement):
                found.setdefault(name, []).append(statement)
        return found

    @functools.cached_property
    def rebound(self) -> frozenset[str]:
        """The names of the module that functions in it give other values."""
        return frozenset(name for node in ast.walk(self.tree) if isinstance(node, ast.Global) for name in node.names)

    @functools.cached_property
    def _definitions(self) -> dict[tuple[str, int], list[Definition]]:
        """By name and first line, which of a decorated function is that of its first decorator."""
        found: dict[tuple[str, int], list[Definition]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Lambda):
                found.setdefault(("<lambda>", node.lineno), []).append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                found.setdefault((node.name, first), []).append(node)
        return found

    def _node(self, code: types.CodeType) -> Definition | None:
        nodes = self._definitions.get((code.co_name, code.co_firstlineno), [])
        if len(nodes) > 1:  # lambdas of one line: what it returns is where it says
            spans = _spans(code)
            bodies = [(node, node.body) for node in nodes if isinstance(node, ast.Lambda)]
            nodes = [n for n, body in bodies if (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in spans]
        return nodes[0] if len(nodes) == 1 else None


def definition_of(code: types.CodeType, names: Mapping[str, Any]) -> Definition | None:
    """The definition that the code was compiled from; None where no text makes this very code.

    ``names`` are those of its module, which know the file and who loaded it.
    """
    file = names.get("__file__")
    for name in dict.fromkeys([code.co_filename, *([file] if file else [])]):
        found = text_in(name, names, code.co_flags & _FUTURE)
        node = None if found is None else found.definition(code)
        if node is None and linecache.cache.get(name) is not None:  # what was read before may be older than the code
            linecache.checkcache(name)
            found = text_in(name, names, code.co_flags & _FUTURE)
            node = None if found is None else found.definition(code)
        if node is not None:
            return node
    return None


def text_in(file: str, names: Mapping[str, Any], flags: int = 0) -> Text | None:
    """The text of a file, a notebook's cell, or a module in an archive; None where there is none."""
    lines = linecache.getlines(file, dict(names) if "__loader__" in names else None)
    return _compiled(_ByIdentity(lines), file, flags) if lines else None


class _ByIdentity:
    """A file's lines, the same where they are the same list: ``linecache`` makes another list when it has read a file again."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __hash__(self) -> int:
        return id(self.lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.lines is other.lines


@functools.lru_cache(maxsize=_LAST_TEXTS)
def _compiled(lines: _ByIdentity, file: str, flags: int) -> Text | None:
    source = "".join(lines.lines)
    try:
        tree = ast.parse(source, file)
        code = compile(source, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return Text(tree, tuple(_inside(code)))


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inside(constant)


def is_same(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two pieces of code do the same, wherever they stand."""
    return _content(one) == _content(other)


def _content(code: types.CodeType) -> tuple[Any, ...]:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    return (code.co_code, names, arguments, tuple(map(_constant, code.co_consts)))


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _content(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return type(value), repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _spans(code: types.CodeType) -> set[tuple[int | None, int | None, int | None, int | None]]:
    return set(code.co_positions())


def _named(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _named(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _named(child, f"{prefix}{child.name}.<locals>.")
        else:
            yield from _named(child, prefix)


def _of_level(body: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """The statements that run on import, also those within ``if``, ``try``, ``with`` and loops."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.TryStar | ast.With | ast.While | ast.ExceptHandler):
            for block in ("body", "handlers", "orelse", "finalbody"):
                yield from _of_level(getattr(node, block, ()))
        elif isinstance(node, ast.stmt):
            yield node


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds or changes: ``a = 1``, ``a["k"] = 1``, ``a.update(b)``."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    if isinstance(statement, ast.For):
        inside = [name for one in _of_level(statement.body) for name in _bound(one)]
        return {*_targets(statement.target), *inside}
    if isinstance(statement, ast.Assign):
        found = {name for target in statement.targets for name in _targets(target)}
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        found = set(_targets(statement.target))
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        found = set(_targets(called.value)) if isinstance(called, ast.Attribute) else set()
    else:
        found = set()
    return found | {node.target.id for node in ast.walk(statement) if isinstance(node, ast.NamedExpr)}


def _targets(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Tuple | ast.List):
        for one in node.elts:
            yield from _targets(one)
    elif isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        yield from _targets(node.value)


@functools.lru_cache(maxsize=LAST_NODES)
def text_of(node: ast.AST) -> str:
    """A tree as text. Of a function it has the arguments and the body, without name and decorators.

    >>> [short] = ast.parse("def f(x: int) -> int:\\n    'Doubles it.'\\n    return (x * 2)  # twice").body
    >>> text_of(short) == text_of(ast.parse("lambda x: x * 2", mode="eval").body)
    True
    """
    if isinstance(node, ast.Lambda):
        return _json(["function", _arguments(node.args), [["Return", ["value", _dump(node.body)]]]])
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        kind = "function" if isinstance(node, ast.FunctionDef) else "async function"
        return _json([kind, _arguments(node.args), _body(node.body)])
    return _json(_dump(node))


def _json(tree: Any) -> str:
    return json.dumps(tree, separators=(",", ":"))


def _arguments(args: ast.arguments) -> list[Any]:
    """The names; ``defaults`` are values of the function."""
    return [
        [one.arg for one in args.posonlyargs],
        [one.arg for one in args.args],
        args.vararg and args.vararg.arg,
        [one.arg for one in args.kwonlyargs],
        args.kwarg and args.kwarg.arg,
    ]


def _dump(value: Any) -> Any:
    if isinstance(value, ast.Constant):
        return ["Constant", *plain(value.value)]
    if isinstance(value, ast.JoinedStr):
        return ["JoinedStr", _pieces(value.values)]
    if isinstance(value, ast.AnnAssign):
        kind = [] if value.value is None else [["value", _dump(value.value)]]
        return ["Assign", ["targets", [_dump(value.target)]], *kind]
    if isinstance(value, ast.AST):
        fields = [[name, _field(name, getattr(value, name, None))] for name in sorted(value._fields) if name not in _SKIPPED]
        return [type(value).__name__, *(field for field in fields if field[1] not in (None, [], 0, -1))]
    if isinstance(value, list):
        return [_dump(one) for one in value]
    return value


def _field(name: str, value: Any) -> Any:
    if name in ("body", "orelse", "finalbody") and isinstance(value, list):
        return _body(value)
    if name == "format_spec" and isinstance(value, ast.JoinedStr):
        return _pieces(value.values)
    return _dump(value)


def _body(statements: list[ast.stmt]) -> list[Any]:
    """Statements, without those that do nothing: docstrings, ``pass``, ``...``."""
    idle = (s for s in statements if not isinstance(s, ast.Pass) and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)))
    return [_dump(statement) for statement in idle]


def _pieces(values: Sequence[ast.expr]) -> list[Any]:
    """Of an f-string; versions of Python differ in where they cut the text between two fields."""
    found: list[Any] = []
    for value in values:
        if not isinstance(value, ast.Constant):
            found.append(_dump(value))
        elif found and isinstance(found[-1], str):
            found[-1] += str(value.value)
        elif value.value:
            found.append(str(value.value))
    return found


def plain(value: Any) -> list[Any]:
    """A constant by its type and value."""
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, int) and not isinstance(value, bool):
        return ["int", hex(value)]
    if isinstance(value, str):
        return ["str", value]
    return [type(value).__name__, repr(value)]
