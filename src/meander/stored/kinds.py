"""Kinds: the names under which descriptions are stored, and the parameters that each of them has.

A kind stands for a class of this version, under whatever name that class has in Python. The registry is filled when modules are imported,
and never changes afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Kind:
    """One class under its stored name."""

    name: str
    type: type
    parameters: Mapping[str, str]
    """By stored name, the attribute that has the value. The class takes the same values under the attributes' names."""
    arguments: Mapping[str, str]
    """By stored name, what the class calls it when an object is made."""
    sql: str | None
    """The attribute with the SQL text that its expressions may have been written as."""

    def values_of(self, thing: object) -> dict[str, Any]:
        """The parameters of an object, by stored name. They are taken from the object's state for
        copying, as in pickling."""
        state: Any = thing.__getstate__() or {}
        return {name: state[attribute] for name, attribute in self.parameters.items()}

    def make(self, values: Mapping[str, Any]) -> Any:
        """An object with these parameters."""
        return self.type(**{self.arguments[name]: value for name, value in values.items()})


_by_name: dict[str, Kind] = {}
_by_type: dict[type, Kind] = {}


def stored(
    kind: str, called: Mapping[str, str] | None = None, without: Collection[str] = (), sql: str | None = None
) -> Callable[[Class], Class]:
    """A class decorator: objects of exactly this class are stored under this kind, which is never used for anything else.

    The parameters are the fields of a dataclass, but for those in ``without`` and those that begin with ``_``. ``called`` has the fields
    that have another name in stores, so that a field can be renamed. Of any other class ``called`` has all parameters: by the argument's
    name, the attribute with its value. ``sql`` is the attribute with the text that expressions were written as.

    A dataclass also shows itself by its kind and parameters from then on.

    >>> @stored("example", called={"size": "length"})
    ... @dataclass(frozen=True)
    ... class Example:
    ...     size: int
    >>> kind_named("example").values_of(Example(3)), Example(3)
    ({'length': 3}, example(length=3))
    >>> _forget("example")
    """

    def register(found: Class) -> Class:
        names = dict(called or {})
        if dataclasses.is_dataclass(found):
            fields = [field.name for field in dataclasses.fields(found) if field.init and field.name not in without]
            arguments = {names.get(name, name): name for name in fields if not name.startswith("_")}
            parameters = arguments
        else:
            arguments, parameters = {name: name for name in names}, names
        if "kind" in parameters:
            raise ValueError(f"kind {kind!r}: a parameter cannot be called 'kind'; give it another name with called=")
        if kind in _by_name:
            raise ValueError(f"kind {kind!r} is that of {_by_name[kind].type.__qualname__}; {found.__qualname__} needs another")
        _by_name[kind] = _by_type[found] = Kind(kind, found, parameters, arguments, sql)
        setattr(found, "__stored__", _by_name[kind])  # noqa: B010  # for plan/code.py, which imports nothing of ours
        if "__dataclass_params__" in vars(found) and found.__dataclass_params__.repr:  # type: ignore[attr-defined]
            setattr(found, "__repr__", _shown)  # noqa: B010  # digests of plans have it in them, and must not change with a class's name
        return found

    return register


def _shown(thing: Any) -> str:
    """``side_time(column='ts', shift=0)``: as a dataclass shows itself, by kind and parameters."""
    kind = _by_type.get(type(thing))
    names = {} if kind is None else {attribute: name for name, attribute in kind.parameters.items()}
    shown = [f"{names.get(f.name, f.name)}={getattr(thing, f.name)!r}" for f in dataclasses.fields(thing) if f.repr]
    return f"{type(thing).__qualname__ if kind is None else kind.name}({', '.join(shown)})"


def kind_named(name: str) -> Kind | None:
    return _by_name.get(name)


def kind_of(thing: object) -> Kind | None:
    """The kind of an object; None where its class has none, as a user's has."""
    return _by_type.get(type(thing))


def all_kinds() -> tuple[Kind, ...]:
    """Those that are registered, by name."""
    return tuple(_by_name[name] for name in sorted(_by_name))


def _forget(kind: str) -> None:
    """For examples."""
    del _by_type[_by_name.pop(kind).type]
