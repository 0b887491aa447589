"""The code of an operator: the parts that count, and a digest of them.

The same code has the same digest in every process and in every version of Python.

A function is its source as a syntax tree (``plan.syntax``), and the values that it carries: defaults, closure, what a partial or a
bound method holds. The names that it refers to count too, and the names that those refer to: functions and classes of
the user's own modules by their code, other names of these modules by the statements that bind
them. Docs: "What counts as code" in modifications.md.

Where the source is not that of the code that runs, bytecode takes its place, and ``Code.compiled`` says of which Python.
An operator that was pickled keeps the ``Code`` that it had where it was written (``Plan``): elsewhere there may be no source.
"""

from __future__ import annotations

import array
import ast
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import json
import operator
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from meander.plan import reach
from meander.plan.content import content_digest
from meander.plan.reach import Space
from meander.plan.serial import functions_of, text_of_expression
from meander.plan.syntax import Text, definition_of, plain, text_of

_SHORT = 32
_LARGEST_FRAME = 1 << 20
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType)
_SHOWN = (decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, pathlib.PurePath, range, slice)
_CONTAINERS = (list, dict, set, bytearray)
_MAKERS = ("__init__", "__post_init__", "__new__")
_CONTENT = (set, frozenset, tuple, list, dict, types.MappingProxyType, collections.deque, array.array, str, bytes, int, float, complex)
# Whose functions are known by their names, also where one is the operator's own: their code follows their version.
_BY_NAME = frozenset({*sys.stdlib_module_names, "meander", "polars", "pandas", "numpy", "pyarrow", "pyspark"})


@dataclass(frozen=True)
class Code:
    """The identity of an operator's code."""

    digest: str = ""
    """Empty where there is no code."""
    parts: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Digests of its functions, classes and names, by which a message says what was changed."""
    compiled: str = field(default="", compare=False)
    """The version of Python, where some of it is known by its bytecode alone."""

    def record(self) -> dict[str, Any]:
        return {"code": self.digest, "code_parts": dict(self.parts), "compiled": self.compiled}

    @staticmethod
    def recorded(record: Mapping[str, Any]) -> Code:
        return Code(record["code"], record["code_parts"], record["compiled"])


NO_CODE = Code()


def code_of(value: Any) -> str:
    """A short hex text over what a function, a callable object, or a list of these would run."""
    return read_code(value).digest


def read_code(value: Any) -> Code:
    """The code of a function, a class, an object of one, or several of them in a list.

    >>> def rate(x): return x * 2
    >>> def price(x): return rate(x) + 1
    >>> sorted(read_code(price).parts)
    ['price()', 'rate()']
    """
    reading = _Reading(value)
    root = reading.value(value, None)
    content = json.dumps([root, *reading.described], default=lambda ref: ref.number)
    parts: dict[str, str] = {}
    for ref, described in zip(reading.refs, reading.described, strict=True):
        name = next(n for i in range(1, len(parts) + 2) if (n := ref.name if i == 1 else f"{ref.name} #{i}") not in parts)
        parts[name] = _hash(json.dumps(described, default=lambda ref: ref.name))[:12]
    return Code(_hash(content), parts, f"{sys.version_info.major}.{sys.version_info.minor}" if reading.compiled else "")


def together(codes: Iterable[Code]) -> Code:
    """The code of several things that one operator has."""
    found = [code for code in codes if code.digest]
    if len(found) < 2:
        return found[0] if found else NO_CODE
    parts = {name: digest for code in found for name, digest in code.parts.items()}
    return Code(_hash(json.dumps([code.digest for code in found])), parts, max(code.compiled for code in found))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]


@dataclass(frozen=True)
class _Ref:
    """Stands for a part that is described by itself: so a function may call itself."""

    number: int
    name: str


class _Reading:
    """One operator's code, part by part in the order in which it is reached."""

    def __init__(self, root: Any, within: _Reading | None = None) -> None:
        """``within`` is the reading that this one is a part of."""
        self.refs: list[_Ref] = []
        self.described: list[Any] = []
        self.compiled = False
        self._known: dict[Any, tuple[_Ref, Any]] = {}
        self._within: set[int] = set() if within is None else set(within._within)
        first = next(_roots(root), None)
        self._home: str = first.module if first is not None else ""
        self._packages: set[str] = {space.package for space in _roots(root)} - _BY_NAME
        if within is not None:
            self._home, self._packages = within._home, within._packages

    def _is_own(self, space: Space) -> bool:
        return space.is_own() or space.package in self._packages or space.module == self._home

    # -- values -----------------------------------------------------------------------------------------------------

    def value(self, value: Any, space: Space | None) -> Any:
        """A value as JSON: plain ones as they are, code as a reference, and never an address."""
        if isinstance(value, np.generic):  # some are numbers of Python's, too
            return ["numpy", str(value.dtype), self._numbers(value, space)]
        if isinstance(value, enum.Enum):
            return ["enum", self._kind(type(value), space), value.name]
        if type(value) in _PLAIN:
            return plain(value)
        if id(value) in self._within:
            return ["..."]
        self._within.add(id(value))
        try:
            return self._held(value, space)
        finally:
            self._within.discard(id(value))

    def _held(self, value: Any, space: Space | None) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._kind(value, space)
        if isinstance(value, functools.partial):
            return ["partial", *(self.value(part, space) for part in (value.func, value.args, value.keywords))]
        if isinstance(value, types.MethodType):
            return ["method", self.value(value.__func__, space), self.value(value.__self__, space)]
        if isinstance(value, staticmethod | classmethod):
            return [type(value).__name__, self.value(value.__func__, space)]
        if isinstance(value, property):
            return ["property", *(self.value(one, space) for one in (value.fget, value.fset, value.fdel))]
        if isinstance(value, functools.cached_property):
            return ["cached", self.value(value.func, space)]
        if isinstance(value, types.CodeType):
            return self._text(value, None)[0]
        if isinstance(value, types.ModuleType):
            return ["module"] if self._is_own(Space(vars(value))) else ["named", value.__name__]
        if isinstance(value, _CONTENT):
            return self._contained(value, space)
        return self._object(value, space)

    def _contained(self, value: Any, space: Space | None) -> Any:
        """A container, or an object that is one, or a text or a number, of a class of its own."""
        if isinstance(value, set | frozenset):
            items: Any = [self.value(one, space) for one in self._in_order(value, space)]
        elif isinstance(value, dict | types.MappingProxyType):
            items = [[self.value(k, space), self.value(v, space)] for k, v in value.items()]
        elif isinstance(value, tuple | list | collections.deque | array.array):
            items = [self.value(one, space) for one in value]
        else:
            base: Any = next(base for base in (str, bytes, int, float, complex) if isinstance(value, base))
            items = plain(base.__new__(base, value))
        if isinstance(value, collections.defaultdict):
            return ["defaultdict", items, self.value(value.default_factory, space)]
        if isinstance(value, collections.deque):
            items = [items, value.maxlen]
        kind = self._kind(type(value), space)
        return [kind, items, self._attributes(value, space)] if isinstance(kind, _Ref) else [type(value).__name__, items]

    def _in_order(self, items: Iterable[Any], space: Space | None) -> list[Any]:
        """What a set has, whose order changes from process to process. Each is read by itself: places of parts follow from the order."""

        def alone(value: Any) -> str:
            if type(value) in _PLAIN:
                return json.dumps(plain(value))
            reading = _Reading(value, self)
            root = reading.value(value, space)
            return json.dumps([root, *reading.described], default=lambda ref: [ref.number, ref.name])

        return sorted(items, key=alone)

    def _object(self, value: Any, space: Space | None) -> Any:
        if (known := vars(type(value)).get("__stored__")) is not None:  # one of ours, by what stores say of it and not by its class
            return ["stored", known.name, {name: self.value(one, space) for name, one in known.values_of(value).items()}]
        kind = self._kind(type(value), space)
        if isinstance(value, _SHOWN) or type(value).__module__ in ("uuid", "fractions"):
            return [kind, str(value)]
        if isinstance(value, re.Pattern):
            return ["pattern", value.pattern if isinstance(value.pattern, str) else value.pattern.hex(), value.flags]
        if isinstance(value, pl.Expr):
            return ["expression", text_of_expression(value), [self.value(one, space) for one in functions_of(value)]]
        if isinstance(value, pl.DataType):
            return ["type", str(value)]
        if isinstance(value, pl.DataFrame | pl.Series):
            return _frame(value.to_frame() if isinstance(value, pl.Series) else value)
        if isinstance(value, np.ndarray):
            return ["numpy", str(value.dtype), list(value.shape), self._numbers(value, space)]
        if isinstance(value, bytearray | memoryview):
            return [type(value).__name__, bytes(value).hex()]
        if type(value).__module__ == "collections":  # UserDict, ChainMap and the like
            return [kind, {name: self.value(one, space) for name, one in vars(value).items()}]
        if isinstance(value, types.SimpleNamespace):
            return ["namespace", self.value(vars(value), space)]
        if isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType | types.NoneType):
            return ["method", value.__qualname__, self.value(value.__self__, space)]
        if isinstance(value, operator.itemgetter | operator.attrgetter | operator.methodcaller):
            return [kind, self.value(value.__reduce__()[1], space)]
        wrapped = value.pyfunc if isinstance(value, np.vectorize) else _wrapped(value)
        if wrapped is not None and callable(value):  # such as that of lru_cache
            return ["wrapper", kind, self.value(wrapped, space)]
        if isinstance(kind, _Ref):
            return [kind, self._attributes(value, space)]
        if dataclasses.is_dataclass(value):
            return [kind, {one.name: self.value(getattr(value, one.name, None), space) for one in dataclasses.fields(value)}]
        named = value if callable(value) and hasattr(value, "__qualname__") else type(value)
        return ["named", _package(named), named.__qualname__]

    def _attributes(self, value: Any, space: Space | None) -> dict[str, Any]:
        """Those that an object of a user's class was given, in ``__dict__`` and in slots."""
        changed = self._attributes_changed(type(value))
        of_classes = [member for base in reversed(type(value).__mro__) for member in vars(base).items()]
        computed = {name for name, member in of_classes if isinstance(member, functools.cached_property)}
        slots = {
            name: one.__get__(value) for name, one in of_classes if isinstance(one, types.MemberDescriptorType) and _is_set(one, value)
        }
        given = {**slots, **{name: one for name, one in getattr(value, "__dict__", {}).items() if name not in computed}}
        return {name: ["changes"] if name in changed else self.value(one, space) for name, one in given.items()}

    def _numbers(self, value: np.generic | np.ndarray[Any, Any], space: Space | None) -> Any:
        if value.dtype.hasobject:
            return [self.value(one, space) for one in np.asarray(value).ravel().tolist()]
        return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()

    # -- functions --------------------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> Any:
        space = Space(function.__globals__)
        code = function.__code__
        if not self._is_own(space):
            return self._strange(function, space)

        def describe() -> Any:
            text, node = self._text(code, space)
            changed = frozenset[str]() if node is None else reach.changed_in(node)
            cells = {name: _content(cell) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)}
            names = code.co_varnames[: code.co_argcount]
            defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
            return [
                text,
                {name: self._carried(name, value, changed, space) for name, value in sorted(cells.items())},
                {name: self._carried(name, value, changed, space) for name, value in sorted(defaults.items())},
                {name: self._carried(name, value, changed, space) for name, value in sorted((function.__kwdefaults__ or {}).items())},
                self._reached(code, node, space),
            ]

        return self._part(function, f"{self._prefix(space)}{_shown(code.co_qualname)}()", describe)

    def _strange(self, function: types.FunctionType, space: Space) -> Any:
        """An installed function: its name, and the user's functions that it was given to wrap."""
        given = [value for cell in function.__closure__ or () if _is_given(value := _content(cell))]
        if hasattr(function, "registry") and hasattr(function, "dispatch"):  # functools.singledispatch
            given = sorted(function.registry.values(), key=lambda one: str(getattr(one, "__qualname__", "")))
        wrapped = _wrapped(function)
        held = [self.value(one, space) for one in (*given, *([] if wrapped is None else [wrapped]))]
        return ["named", space.package, function.__code__.co_qualname, held]

    def _text(self, code: types.CodeType, space: Space | None) -> tuple[Any, ast.AST | None]:
        node = definition_of(code, {} if space is None else space.names)
        if node is not None:
            return text_of(node), node
        self.compiled = True
        return _bytecode(code), None

    def _carried(self, name: str, value: Any, changed: frozenset[str], space: Space) -> Any:
        """A value that a function carries, without the content of one that the function changes."""
        is_changed = name in changed or any(path.startswith(f"{name}.") for path in changed)
        by_itself = isinstance(value, _CONTAINERS) or (hasattr(value, "__dict__") and not callable(value))
        if f"nonlocal {name}" in changed or (is_changed and by_itself):
            return ["changes"]
        return self.value(value, space)

    def _reached(self, code: types.CodeType, node: ast.AST | None, space: Space) -> dict[str, Any]:
        """What code reaches by names of its module."""
        names = reach.loaded(code)
        local = {} if node is None else reach.imported_in(node, space)
        chains = reach.chains_of(code) if node is None else reach.chains_in(node)
        rebound = reach.stored(code)
        found: dict[str, Any] = {}
        for chain in sorted(set(chains)):
            if chain[0] in local:
                module, name = local[chain[0]]
                inside = self._named((name,), Space(vars(module))) if name else self._follow(chain, module, space)
                found.update({f"{chain[0]}": value for _, value in inside} if name else inside)
            elif chain[0] in names and chain[0] in space.names:
                found.update(self._named(chain, space, rebound))
        return found

    def _named(self, chain: tuple[str, ...], space: Space, rebound: Iterable[str] = ()) -> Iterator[tuple[str, Any]]:
        """A name of a module, with attributes."""
        name = chain[0]
        if name.startswith("__") and name.endswith("__"):
            return
        if name not in space.names:
            return
        thing = space.names[name]
        if isinstance(thing, types.ModuleType):
            yield from self._follow(chain, thing, space)
        elif _is_code(thing):
            yield name, self.value(thing, space)
        else:
            yield name, self._constant(name, thing, space, name in rebound)

    def _follow(self, chain: tuple[str, ...], thing: Any, space: Space) -> Iterator[tuple[str, Any]]:
        """Through the attributes of modules of the user's own."""
        if not isinstance(thing, types.ModuleType) or not self._is_own(Space(vars(thing))):
            yield chain[0], self.value(thing, space) if _is_code(thing) or isinstance(thing, types.ModuleType) else ["other"]
        elif len(chain) > 1:
            inside = Space(vars(thing))
            if chain[1] in inside.names or reach.own_module(f"{thing.__name__}.{chain[1]}") is not None:
                for name, described in self._named(chain[1:], inside):
                    yield f"{chain[0]}.{name}", described

    # -- names that are neither functions nor classes ----------------------------------------------------------------

    def _constant(self, name: str, value: Any, space: Space, rebound: bool) -> Any:
        """A name of a module, by the statements that bind it: each process may have another value."""
        text = space.text()
        statements = [] if text is None else text.binding(name)
        for statement in statements:
            if isinstance(statement, ast.ImportFrom):
                return self._from(statement, name, value, space)
        if not statements:
            if text is not None and (origin := _star(text.tree, name, space)) is not None:
                return self._constant(name, value, origin, rebound)
            return ["changes"] if rebound else self.value(value, space) if _is_fixed(value) else ["other", type(value).__qualname__]
        if not self._is_own(space):
            return ["named", space.package, name]
        if text is not None and _is_stale(statements, name, value, text):
            return self.value(value, space) if _is_fixed(value) else ["other", type(value).__qualname__]

        def describe() -> Any:
            reached: dict[str, Any] = {}
            for chain in sorted({chain for statement in statements for chain in reach.chains_in(statement)}):
                if chain[0] in space.names and chain[0] != name:
                    reached.update(self._named(chain, space))
            return [[text_of(statement) for statement in statements], reached]

        return self._part((id(space.names), name), f"{self._prefix(space)}{name}", describe)

    def _from(self, statement: ast.ImportFrom, name: str, value: Any, space: Space) -> Any:
        alias = next((one for one in statement.names if (one.asname or one.name) == name), None)
        origin = reach.own_module(reach.absolute(statement, space))
        if alias is None or origin is None:
            return ["named", (statement.module or "").partition(".")[0], name if alias is None else alias.name]
        return self._constant(alias.name, value, Space(vars(origin)), False)

    # -- classes ----------------------------------------------------------------------------------------------------

    def _kind(self, kind: type, hint: Space | None) -> Any:
        space = reach.space_of(kind, hint)
        if kind.__module__ == "builtins" or not self._is_own(space):
            known = vars(kind).get("__stored__")
            return ["named", _package(kind), kind.__qualname__] if known is None else ["stored", known.name]
        return self._part(kind, f"{self._prefix(space)}{_shown(kind.__qualname__)}", lambda: self._class(kind, space))

    def _class(self, kind: type, space: Space) -> Any:
        text = space.text()
        node = None if text is None else text.class_named(kind.__qualname__)
        members = {name: member for name, member in vars(kind).items() if _is_code(member) or isinstance(member, _DESCRIPTORS)}
        if (
            node is not None or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
        ):  # what a decorator has made of the fields follows from them
            members = {name: one for name, one in members.items() if not _is_generated(one)}
        members = {name: one for name, one in members.items() if name not in ("__weakref__", "__dict__", "__class__")}
        if node is not None and "<locals>" not in kind.__qualname__:
            rest: Any = self._class_text(node, space)
        else:
            rest = {n: self.value(m, space) for n, m in sorted(vars(kind).items()) if n[:2] != "__" and n not in members and _is_fixed(m)}
        bases = [self.value(base, space) for base in kind.__bases__ if base is not object]
        return [bases, {name: self.value(member, space) for name, member in sorted(members.items())}, rest]

    def _class_text(self, node: ast.ClassDef, space: Space) -> Any:
        """What a class says beside its functions."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Pass
        said: list[ast.AST] = [one for one in node.body if not isinstance(one, kinds)]
        said = [one for one in said if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
        said += [*node.decorator_list, *node.keywords]
        reached: dict[str, Any] = {}
        for chain in sorted({chain for one in said for chain in reach.chains_in(one)}):
            if chain[0] in space.names:
                reached.update(self._named(chain, space))
        return [[text_of(one) for one in said], reached]

    def _attributes_changed(self, kind: type) -> set[str]:
        """Attributes that methods change after the object was made."""
        found: set[str] = set()
        for base in kind.__mro__:
            for name, member in vars(base).items():
                if isinstance(member, types.FunctionType) and name not in _MAKERS and member.__code__.co_argcount:
                    node = definition_of(member.__code__, member.__globals__)
                    own = f"{member.__code__.co_varnames[0]}."
                    changed = frozenset[str]() if node is None else reach.changed_in(node)
                    found |= {path.removeprefix(own) for path in changed if path.startswith(own)}
        return found

    # -- parts ------------------------------------------------------------------------------------------------------

    def _part(self, key: Any, name: str, describe: Callable[[], Any]) -> _Ref:
        if (known := self._known.get(_key(key))) is not None:
            return known[0]
        ref = _Ref(len(self.refs), name)
        self._known[_key(key)] = ref, key
        self.refs.append(ref)
        self.described.append(None)
        self.described[ref.number] = describe()
        return ref

    def _prefix(self, space: Space) -> str:
        return "" if space.module == self._home else f"{space.module}."


_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


def _roots(value: Any) -> Iterator[Space]:
    """The modules of the functions and classes that were given."""
    if isinstance(value, functools.partial):
        yield from _roots(value.func)
    elif isinstance(value, types.MethodType):
        yield from _roots(value.__self__)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _roots(one)
    elif isinstance(value, types.FunctionType):
        yield from [Space(value.__globals__)] if _wrapped(value) is None else _roots(_wrapped(value))
    elif (wrapped := _wrapped(value)) is not None:
        yield from _roots(wrapped)
    elif isinstance(value, type) or hasattr(value, "__dict__"):
        kind = value if isinstance(value, type) else type(value)
        if kind.__module__ != "builtins":
            yield reach.space_of(kind, None)


def _frame(frame: pl.DataFrame) -> Any:
    """A table by its values; a large one, and one of objects, by its size."""
    is_read = frame.estimated_size() <= _LARGEST_FRAME and "Object" not in str(frame.dtypes)
    return ["frame", str(frame.schema), content_digest(frame) if is_read else frame.height]


def _wrapped(value: Any) -> Any:
    """The function that a decorator has wrapped. Proxies answer to every name, so attributes are not asked for."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return attributes.get("__wrapped__")


def _key(key: Any) -> Any:
    return key if isinstance(key, tuple) else id(key)


def _shown(qualname: str) -> str:
    return qualname.replace("<locals>.", "")


def _package(thing: Any) -> str:
    """The package of an installed thing. Versions move things between the modules of a package."""
    return str(getattr(thing, "__module__", None) or "").partition(".")[0]


def _is_set(slot: types.MemberDescriptorType, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:  # nobody has given it a value
        return False
    return True


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _is_code(value: Any) -> bool:
    kinds = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, functools.partial)
    return isinstance(value, kinds) or (callable(value) and _wrapped(value) is not None)


def _is_given(value: Any) -> bool:
    """Whether an installed function was given this when it was made, and does not keep it itself."""
    return _is_code(value) or isinstance(value, bool | int | float | str | bytes)


def _is_generated(member: Any) -> bool:
    function = getattr(member, "__func__", getattr(member, "fget", member))
    return isinstance(function, types.FunctionType) and function.__code__.co_filename.startswith(("<string>", "<attrs"))


def _is_fixed(value: Any) -> bool:
    """A plain value that nobody can change."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, (*_PLAIN, enum.Enum, re.Pattern, *_SHOWN))


def _is_stale(statements: list[ast.stmt], name: str, value: Any, text: Text) -> bool:
    """Whether a text says another value than the module has, because it was edited since.

    A name that functions rebind may have any value."""
    (first, *more) = statements
    if more or not isinstance(first, ast.Assign | ast.AnnAssign) or first.value is None or not _is_fixed(value):
        return False
    if isinstance(first, ast.Assign) and not all(isinstance(target, ast.Name) for target in first.targets):
        return False
    if name in text.rebound:
        return False
    try:
        return bool(ast.literal_eval(first.value) != value)
    except (ValueError, TypeError, SyntaxError):
        return False


def _star(tree: ast.Module, name: str, space: Space) -> Space | None:
    """The module of ``from module import *`` that has brought a name."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            origin = reach.own_module(reach.absolute(node, space))
            if origin is not None and hasattr(origin, name):
                return Space(vars(origin))
    return None


def _bytecode(code: types.CodeType) -> Any:
    constants = [_bytecode(c) if isinstance(c, types.CodeType) else _literal(c) for c in code.co_consts]
    return ["bytecode", code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _literal(value: Any) -> Any:
    if isinstance(value, tuple | frozenset):
        items = [_literal(one) for one in value]
        return [type(value).__name__, sorted(items, key=repr) if isinstance(value, frozenset) else items]
    return plain(value)
