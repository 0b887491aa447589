"""The names that code refers to: modules, their contents, and whether they are the user's own.

A module is the *user's own* where it is neither of Python, nor installed, nor a module of this package. Called by ``plan.code``,
and by ``plan.pickling``, which sends code of such modules along.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meander.plan.syntax import LAST_NODES, Text, text_in

_OURS = __name__.partition(".")[0]
_STDLIB = tuple({sysconfig.get_paths()[name] + "/" for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
# Methods of lists, dicts, sets and deques that change them.
_CHANGES = frozenset(
    "add append appendleft clear discard extend insert pop popitem popleft remove setdefault sort update __setitem__".split()
)


@dataclass(frozen=True)
class Space:
    """The names of one module."""

    names: Mapping[str, Any]

    @property
    def module(self) -> str:
        return str(self.names.get("__name__") or "")

    @property
    def file(self) -> str | None:
        return self.names.get("__file__")

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    def text(self) -> Text | None:
        return text_in(self.file, self.names) if self.file and self.file.endswith(".py") else None

    def is_own(self) -> bool:
        """Whether the user has written it."""
        return is_own(self.module, self.file)


def is_own(module: str, file: str | None) -> bool:
    """Whether a module is the user's own.

    >>> import json
    >>> is_own("json", json.__file__), is_own("sys", None), is_own("__main__", None), is_own("rates", "/home/me/rates.py")
    (False, False, True, True)
    """
    package = module.partition(".")[0]
    if package == _OURS:
        return False
    if file is None:
        return package not in sys.stdlib_module_names and package != "builtins"
    if file.startswith(_STDLIB) or not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    above = Path(file).parents
    depth = 0 if module == "__main__" else module.count(".") + (Path(file).name == "__init__.py")
    return package not in _installed_in(str(above[min(depth, len(above) - 1)]))


@functools.lru_cache(maxsize=256)
def _installed_in(folder: str) -> frozenset[str]:
    """The packages that ``pip install --target`` has put into a folder, by their records."""
    found: set[str] = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        lines = record.read_text(errors="replace").splitlines()
        found.update(line.partition(",")[0].partition("/")[0].removesuffix(".py") for line in lines)
    return frozenset(found)


def space_of(kind: type, hint: Space | None) -> Space:
    """The module of a class. ``hint`` is the one in which it was found: flow files are not imported
    by name."""
    for member in vars(kind).values():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if isinstance(function, types.FunctionType) and function.__module__ == kind.__module__ == function.__globals__.get("__name__"):
            return Space(function.__globals__)
    if hint is not None and hint.module == kind.__module__:
        return hint
    module = sys.modules.get(kind.__module__)
    return Space(vars(module) if module is not None else {"__name__": kind.__module__})


def loaded(code: types.CodeType) -> frozenset[str]:
    """The names of its module that code reads, also in functions within it."""
    return _global_names(code)[0]


def stored(code: types.CodeType) -> frozenset[str]:
    """The names of its module that code gives another value: ``global n``."""
    return _global_names(code)[1]


@functools.lru_cache(maxsize=LAST_NODES)
def _global_names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    steps = list(dis.get_instructions(code))
    inside = [_global_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    read = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    changed = {step.argval for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    return frozenset(read.union(*(one for one, _ in inside))), frozenset(changed.union(*(one for _, one in inside)))


def chains_of(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Names with the attributes that are taken of them at once, by the bytecode alone."""
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, step.argval)
        elif step.opname != "EXTENDED_ARG":
            if chain:
                yield chain
            chain = (step.argval,) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from chains_of(constant)


@functools.lru_cache(maxsize=LAST_NODES)
def chains_in(node: ast.AST) -> frozenset[tuple[str, ...]]:
    """Names with their attributes: ``("helpers", "rate")`` and ``("x",)`` of ``helpers.rate(x)``."""
    return frozenset(_chains(node))


def _chains(node: ast.AST) -> Iterator[tuple[str, ...]]:
    if isinstance(node, ast.Name):
        yield (node.id,)
        return
    if isinstance(node, ast.Attribute):
        parts, root = [node.attr], node.value
        while isinstance(root, ast.Attribute):
            parts.append(root.attr)
            root = root.value
        if isinstance(root, ast.Name):
            yield (root.id, *reversed(parts))
            return
    for child in ast.iter_child_nodes(node):
        yield from _chains(child)


def imported_in(node: ast.AST, space: Space) -> dict[str, tuple[types.ModuleType, str]]:
    """The imports within a function from the user's own modules, by the names that they have there:
    a module, or a module and a name in it.

    They are imported for that, as they are when the function runs.
    """
    found: dict[str, tuple[types.ModuleType, str]] = {}
    for one in _imports_in(node):
        if isinstance(one, ast.Import):
            for alias in one.names:
                package, module = own_module(alias.name.partition(".")[0]), own_module(alias.name)
                if package is not None and module is not None:
                    found[alias.asname or package.__name__] = (module if alias.asname else package), ""
        elif (origin := own_module(absolute(one, space))) is not None:
            for alias in one.names:
                inner = own_module(f"{origin.__name__}.{alias.name}") if not hasattr(origin, alias.name) else None
                found[alias.asname or alias.name] = (origin, alias.name) if inner is None else (inner, "")
    return found


@functools.lru_cache(maxsize=LAST_NODES)
def _imports_in(node: ast.AST) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(one for one in ast.walk(node) if isinstance(one, ast.Import | ast.ImportFrom))


def absolute(statement: ast.ImportFrom, space: Space) -> str:
    """The full name of the module that names are imported from."""
    if not statement.level:
        return statement.module or ""
    package = str(space.names.get("__package__") or space.module.rpartition(".")[0])
    above = package.rsplit(".", statement.level - 1)[0]
    return f"{above}.{statement.module}" if statement.module else above


def own_module(name: str) -> types.ModuleType | None:
    """A module of the user's own; None where it is somebody else's, or cannot be imported here."""
    if name in sys.modules:
        module = sys.modules[name]
        return module if Space(vars(module)).is_own() else None
    package = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)
        if spec is None or not is_own(package, spec.origin):
            return None
        return importlib.import_module(name)
    except Exception:  # it fails in a way of its own when the function runs
        return None


@functools.lru_cache(maxsize=LAST_NODES)
def changed_in(node: ast.AST) -> frozenset[str]:
    """Names whose values code changes: ``cache`` of ``cache[k] = v``, ``self.n`` of ``self.n += 1``,
    ``nonlocal n``."""
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Nonlocal):
            found.update(f"nonlocal {name}" for name in one.names)
        elif isinstance(one, ast.Subscript | ast.Attribute) and isinstance(one.ctx, ast.Store | ast.Del):
            found.update(_path(one))
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in _CHANGES:
            found.update(_path(one.func.value))
    return frozenset(found)


def _path(node: ast.AST) -> Iterator[str]:
    """The name at its root, and the first attribute of that."""
    parts: list[str] = []
    while isinstance(node, ast.Subscript | ast.Attribute):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        yield f"{node.id}.{parts[-1]}" if parts else node.id
