"""Values as JSON, and back: what parameters of descriptions can be.

``null``, ``true``, ``false``, numbers and text are themselves, and an array is a tuple. An object
with ``kind`` is one of our descriptions with all its parameters. Everything else is an object with
one tag, such as ``{"$duration": 1000000}``. Values without a form of their own are a user's:
``$own`` is an object of a user's class whose attributes have no code of the user's in them, and
``$code`` a function, a class, or any other object.
"""

from __future__ import annotations

import base64
import functools
import io
import math
import types
from abc import ABCMeta
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from meander.errors import ConfigError
from meander.stored.code import is_users_own, pack, unpack, versions
from meander.stored.expressions import calls_python, read_expression, write_expression
from meander.stored.kinds import Kind, kind_named, kind_of
from meander.stored.types import NoSuchType, read_schema, read_type, write_schema, write_type

_MICROSECOND = timedelta(microseconds=1)
_OWN_WAYS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__slots__", "__new__")
"""Methods by which a class decides how its objects are copied."""

_WITH_CONTENT = (dict, list, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, BaseException)
"""Their objects have content beside their attributes."""


class _NotPlain(Exception):
    """An object that is not only its attributes: some of them are shared, or have code of the user's.

    Every blob that is read has classes of its own. A class and an object that knows it by ``is`` or
    ``isinstance`` have to be in one blob.
    """


class Writer:
    """Makes data of values."""

    def __init__(self, expressions: bool = True) -> None:
        """``expressions``: False leaves those of aggregates out, which only says how rows are folded, and not how they are shown."""
        self._expressions = expressions
        self._held: list[object] | None = None
        """The containers in the object of a user's that is being written: of each there may be one."""

    def write(self, value: Any, texts: tuple[str | None, ...] = ()) -> Any:
        """``texts`` are what an expression may have been written as."""
        if value is None or type(value) in (bool, int, str):
            return value
        if (kind := kind_of(value)) is not None:
            return self._described(kind, value)
        if isinstance(value, pl.Expr) and not self._expressions:
            return None
        if isinstance(value, pl.Expr) and not calls_python(value):
            return write_expression(value, texts)
        if (form := _SIMPLE.get(type(value))) is not None:
            return form(value)
        if (form := self._container(type(value))) is not None:
            self._hold(value)
            return form(value)
        if isinstance(value, pl.DataType):
            try:
                return {"$type": write_type(value)}
            except NoSuchType:
                return {"$code": pack(value, self._described_or_none)}
        if type(value) is pl.DataFrame and (data := _frame(value)) is not None:
            return {"$frame": data}
        return self._of_user(value)

    def _described(self, kind: Kind, value: object) -> dict[str, Any]:
        texts = getattr(value, kind.sql) if kind.sql is not None else None
        found: dict[str, Any] = {"kind": kind.name}
        for name, parameter in kind.values_of(value).items():
            if kind.sql is not None and isinstance(parameter, tuple) and any(isinstance(one, pl.Expr) for one in parameter):
                each = texts if isinstance(texts, tuple) and len(texts) == len(parameter) else (None,) * len(parameter)
                found[name] = [self.write(one, (text,)) for one, text in zip(parameter, each, strict=True)]
            else:
                found[name] = self.write(parameter, (texts,) if isinstance(texts, str) else ())
        return found

    def _described_or_none(self, value: Any) -> Any:
        kind = kind_of(value)
        return None if kind is None else Writer().write(value)

    def _container(self, kind: type) -> Callable[[Any], Any] | None:
        forms: dict[Any, Callable[[Any], Any]] = {
            tuple: lambda items: [self.write(item) for item in items],
            list: lambda items: {"$list": [self.write(item) for item in items]},
            dict: self._map,
            types.MappingProxyType: self._map,
            pl.Schema: self._schema,
            set: lambda items: {"$set": self._unordered(items)},
            frozenset: lambda items: {"$frozenset": self._unordered(items)},
        }
        return forms.get(kind)

    def _map(self, items: Mapping[Any, Any]) -> Any:
        return {"$map": [[self.write(key), self.write(value)] for key, value in items.items()]}

    def _schema(self, schema: pl.Schema) -> Any:
        try:
            return {"$schema": write_schema(schema)}
        except NoSuchType:
            return {"$code": pack(schema, self._described_or_none)}

    def _unordered(self, items: Any) -> list[Any]:
        return sorted((self.write(item) for item in items), key=repr)

    def _of_user(self, value: Any) -> Any:
        if self._held is not None:
            raise _NotPlain
        if not _is_plain(value):
            return {"$code": pack(value, self._described_or_none)}
        self._held = [value]
        try:
            return self._own(value)
        except _NotPlain:
            return {"$code": pack(value, self._described_or_none)}
        finally:
            self._held = None

    def _own(self, value: Any) -> Any:
        attributes = {name: self.write(attribute) for name, attribute in vars(value).items()}
        return {"$own": {"class": pack(type(value), self._described_or_none), "attributes": attributes}}

    def _hold(self, value: object) -> None:
        if self._held is not None and not isinstance(value, tuple | frozenset | pl.Schema):
            if any(value is one for one in self._held):
                raise _NotPlain
            self._held.append(value)


class Reader:
    """Makes values of data. ``what`` names the thing that is read, for messages."""

    def __init__(self, what: str, run_code: bool, refusal: str = "") -> None:
        """``refusal`` is what is said where code would have to run and must not."""
        self._what, self._run_code, self._refusal = what, run_code, refusal

    def read(self, data: Any) -> Any:
        """ConfigError where this version does not know what is written there, or where code would have to run and must not."""
        if data is None or isinstance(data, bool | int | str | float):
            return data
        if isinstance(data, list):
            return tuple(self.read(item) for item in data)
        if "kind" in data:
            return self._described(data)
        try:
            return self._tagged(data)
        except (NoSuchType, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{self._what}: {_newer(data, str(error))}") from error

    def _described(self, data: Mapping[str, Any]) -> Any:
        kind = kind_named(data["kind"])
        if kind is None:
            raise ConfigError(
                f"{self._what}: its kind {data['kind']!r} is not known to Meander {versions()['meander']}; it was written by a newer "
                "Meander: use that version"
            )
        given = {name: value for name, value in data.items() if name != "kind"}
        if unknown := sorted(given.keys() - kind.parameters.keys()):
            raise ConfigError(
                f"{self._what}: {kind.name} has a parameter {unknown[0]!r} that Meander {versions()['meander']} does not know; it was "
                "written by a newer Meander: use that version"
            )
        if missing := sorted(kind.parameters.keys() - given.keys()):
            raise ConfigError(f"{self._what}: {kind.name} has no parameter {missing[0]!r}; it was written by another version of Meander")
        return kind.make({name: self.read(value) for name, value in given.items()})

    def _tagged(self, data: Mapping[str, Any]) -> Any:
        match data:
            case {"$column": _} | {"$sql": _} | {"$expression": _}:
                return read_expression(data, self._what, self._run_code)
            case {"$own": {"class": found, "attributes": attributes}}:
                made = object.__new__(self._code(found))
                vars(made).update({name: self.read(value) for name, value in attributes.items()})
                return made
            case {"$code": found}:
                return self._code(found)
            case {"$list": items}:
                return [self.read(item) for item in items]
            case {"$map": items}:
                return {self.read(key): self.read(value) for key, value in items}
            case {"$set": items}:
                return {self.read(item) for item in items}
            case {"$frozenset": items}:
                return frozenset(self.read(item) for item in items)
            case {"$datetime": text, "zone": zone}:
                return datetime.fromisoformat(text) if zone is None else datetime.fromisoformat(text).astimezone(ZoneInfo(zone))
        if len(data) == 1:
            ((tag, content),) = data.items()
            if tag in _BACK:
                return _BACK[tag](content)
        raise ConfigError(f"{self._what}: {_newer(data, 'such a value is not known')}")

    def _code(self, found: Mapping[str, Any]) -> Any:
        if not self._run_code:
            raise ConfigError(
                f"{self._what}: it has code of the flow's own ({found.get('name')!r}), {self._refusal or 'which is not run here'}"
            )
        return unpack(dict(found), self._what, self.read)


def _newer(data: object, why: str) -> str:
    return f"{str(data)[:60]!r} is not understood by Meander {versions()['meander']} ({why}); it was written by a newer version"


def _is_plain(value: Any) -> bool:
    """Whether an object is one of a user's own class, and nothing but its attributes."""
    kind = type(value)
    if isinstance(value, type | types.FunctionType | types.MethodType | functools.partial) or type(kind) not in (type, ABCMeta):
        return False
    if not is_users_own(kind.__module__) or not hasattr(value, "__dict__"):
        return False
    if issubclass(kind, _WITH_CONTENT):
        return False
    return not any(way in vars(one) for one in kind.__mro__[:-1] for way in _OWN_WAYS if _is_of_users(one))


def _is_of_users(kind: type) -> bool:
    return kind.__module__ not in ("typing", "abc", "builtins")


def _float(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": str(value)}


def _datetime(value: datetime) -> Any:
    zone = value.tzinfo
    if zone is None:
        return {"$datetime": value.isoformat(), "zone": None}
    key = getattr(zone, "key", None)
    return {"$datetime": value.isoformat(), "zone": key} if key else {"$code": pack(value, lambda _: None)}


def _time(value: time) -> Any:
    return {"$time": value.isoformat()} if value.tzinfo is None else {"$code": pack(value, lambda _: None)}


def _frame(frame: pl.DataFrame) -> str | None:
    """A frame's bytes in Arrow's format; None where that does not give it back."""
    out = io.BytesIO()
    try:
        frame.rechunk().write_ipc(out, compression="zstd")
        if pl.read_ipc(io.BytesIO(out.getvalue())).schema != frame.schema:
            return None
    except pl.exceptions.PolarsError:
        return None
    return base64.b64encode(out.getvalue()).decode()


_SIMPLE: dict[type, Callable[[Any], Any]] = {
    float: _float,
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
    datetime: _datetime,
    date: lambda value: {"$date": value.isoformat()},
    time: _time,
    timedelta: lambda value: {"$duration": value // _MICROSECOND},
    Decimal: lambda value: {"$decimal": str(value)},
}
_BACK: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$duration": lambda micros: timedelta(microseconds=micros),
    "$decimal": Decimal,
    "$type": read_type,
    "$schema": read_schema,
    "$frame": lambda text: pl.read_ipc(io.BytesIO(base64.b64decode(text, validate=True))),
}
