"""Processor: Python code with state per key; the class that users write, and the reading of its
declaration.

A processor declares the state of a key in typed variables and its output columns in ``output``. Its
code has one of two forms:

- ``on_events(key, rows, state, ctx)``, called once per key and epoch, is plain Python;
- ``on_batch(rows, state, ctx)``, called once for all keys of a slot, works on Polars frames.

A processor of two connected streams has a second method, of the same form, for the rows of the other: ``on_other_events``, or
``on_other_batch``.

One object of the class is made, is sent to the executors, and serves all keys and epochs. It must
keep nothing outside the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import polars as pl

from meander.errors import FlowError
from meander.processor.types import schema_of, type_of
from meander.settings import seconds
from meander.stored import stored

KEY, VALUE = "key", "value"
"""The fields of a map's entries, as they are stored."""
TIMERS = {"event": "__event", "processing": "__processing"}
TOUCHED, CHECK = "__touched", "__check"
"""Columns of a key's row beside its variables: its timers, the time of its last rows, and the time
at which its variables are next checked for expiry."""


@stored("variable", called={"kind": "form"})
@dataclass(frozen=True)
class Variable:
    """Something that is remembered of every key. Made by ``value``, ``list_of`` and ``map_of``."""

    kind: str
    types: tuple[pl.DataType, ...]
    default: Any
    ttl: int | None
    """Microseconds without rows after which it is forgotten."""

    @property
    def dtype(self) -> pl.DataType:
        """How it is stored."""
        if self.kind == "value":
            return self.types[0]
        if self.kind == "list":
            return pl.List(self.types[0])
        return pl.List(pl.Struct({KEY: self.types[0], VALUE: self.types[1]}))

    def stored(self, name: str) -> dict[str, pl.DataType]:
        """The columns that it is stored in, under its name."""
        if self.kind != "map":
            return {name: self.dtype}
        return {f"{name}.{KEY}": pl.List(self.types[0]), f"{name}.{VALUE}": pl.List(self.types[1])}

    def fresh(self) -> Any:
        """The initial value of a new key."""
        return self.default if self.kind == "value" else [] if self.kind == "list" else {}


def value(dtype: Any, default: Any = None, ttl: float | str | None = None) -> Any:
    """One value per key: ``count = md.value("int64", default=0)``, then ``state.count += 1``."""
    found = _simple("value", dtype)
    try:
        default = pl.Series([default], dtype=found, strict=True).to_list()[0]
    except Exception as error:
        raise FlowError(f"value({dtype!r}): the default {default!r} is no {found}") from error
    return Variable("value", (found,), default, _ttl("value", ttl))


def list_of(dtype: Any, ttl: float | str | None = None) -> Any:
    """A list per key: ``items = md.list_of("string")``, then ``state.items.append(...)``.

    It is part of the key's row, and written whole when it changes: for tens or hundreds of values, not for millions.
    """
    return Variable("list", (_simple("list_of", dtype),), None, _ttl("list_of", ttl))


def map_of(key: Any, value: Any, ttl: float | str | None = None) -> Any:
    """A dict per key: ``seen = md.map_of("string", "double")``, then ``state.seen["a"] = 1.0``. Of the size that a list can have."""
    return Variable("map", (_simple("map_of", key), _simple("map_of", value)), None, _ttl("map_of", ttl))


class Processor:
    """Python code with state per key: subclass, declare, and give it to ``key_by(...).process(...)``.

    >>> class Visits(Processor):
    ...     output = {"n": "int64"}
    ...     count = value("int64", default=0)
    ...     def on_events(self, key, rows, state, ctx):
    ...         state.count += len(rows)
    ...         if state.count >= 100:
    ...             yield (state.count,)
    ...             state.clear()
    >>> declaration_of(Visits()).form
    'events'

    ``on_events`` returns or yields rows: tuples or dicts of the columns in ``output``. The key's
    columns come in front by themselves. A key without timers whose variables all have their
    defaults takes no space.

    ``side_outputs`` declares further output streams with their columns:
    ``{"late": {"page": "string"}}``. ``ctx.emit(row, "late")`` sends a row to one, and
    ``stream.side("late")`` is that stream.

    ``on_other_events(key, rows, state, ctx)`` gets the rows of a second stream: ``a.connect(b).process(...)``.

    ``ttl_clock`` is the clock of the variables' ``ttl``: ``"event"``, ``"processing"``, or None for event time where the rows have one.
    """

    output: ClassVar[Any] = None
    side_outputs: ClassVar[Any] = None
    ttl_clock: ClassVar[str | None] = None


HOOKS = {"events": ("on_events", "on_other_events"), "batch": ("on_batch", "on_other_batch")}
"""By form, the methods that get rows: those of the input, or the left one, and those of the other."""
_TIMERS = {"events": "on_timer", "batch": "on_timers"}


@dataclass(frozen=True)
class Declaration:
    """The declaration of a processor, read from its class."""

    name: str
    form: str
    """``events`` or ``batch``."""
    output: pl.Schema
    variables: Mapping[str, Variable]
    has_timers: bool
    ttl_clock: str | None
    sides: Mapping[str, pl.Schema] = field(default_factory=dict)
    """The columns of its side outputs."""
    connects: bool = False
    """Whether it has a method for the rows of a second stream."""

    @property
    def hooks(self) -> tuple[str, ...]:
        """The names of the methods that get the rows of each input."""
        return HOOKS[self.form][: 2 if self.connects else 1]

    @property
    def has_ttl(self) -> bool:
        return any(variable.ttl is not None for variable in self.variables.values())

    def beside(self) -> dict[str, pl.DataType]:
        """The columns of a key's row that are no variable's."""
        timers = dict.fromkeys(TIMERS.values(), pl.List(pl.Int64())) if self.has_timers else {}
        return {**timers, **({TOUCHED: pl.Int64(), CHECK: pl.Int64()} if self.has_ttl else {})}


def declaration_of(processor: Processor) -> Declaration:
    """Read and check what a processor declares."""
    kind = type(processor)
    name = kind.__name__
    found = {hook: form for form, (hook, _) in HOOKS.items() if callable(getattr(kind, hook, None))}
    if len(found) != 1:
        there = " and ".join(found) or "neither"
        raise FlowError(
            f"processor {name}: it must have on_events(self, key, rows, state, ctx) or on_batch(self, rows, state, ctx), and has {there}"
        )
    (form,) = found.values()
    other = _TIMERS["batch" if form == "events" else "events"]
    if hasattr(kind, other):
        raise FlowError(f"processor {name}: beside {next(iter(found))} timers come to {_TIMERS[form]}, not to {other}")
    if callable(getattr(kind, HOOKS["batch" if form == "events" else "events"][1], None)):
        first, second = HOOKS[form]
        raise FlowError(f"processor {name}: beside {first} the rows of a second stream come to {second}: both have one form")
    if kind.output is None:
        raise FlowError(f"processor {name}: say what leaves it, as in output = {{'n': 'int64'}}")
    if kind.ttl_clock not in (None, "event", "processing"):
        raise FlowError(f"processor {name}: ttl_clock={kind.ttl_clock!r}; there are 'event' and 'processing'")
    variables = {n: v for c in reversed(kind.__mro__) for n, v in vars(c).items() if isinstance(v, Variable)}
    for taken in ("clear", *(n for n in variables if n.startswith("_"))):
        if taken in variables:
            raise FlowError(f"processor {name}: a variable cannot be named {taken!r}")
    output = schema_of(kind.output, f"processor {name}: output")
    sides = _sides(kind.side_outputs, f"processor {name}: side_outputs")
    connects = callable(getattr(kind, HOOKS[form][1], None))
    return Declaration(name, form, output, variables, hasattr(kind, _TIMERS[form]), kind.ttl_clock, sides, connects)


def _sides(given: Any, what: str) -> dict[str, pl.Schema]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise FlowError(f"{what}: {given!r} does not say names and their columns; write {{'late': {{'page': 'string'}}}}")
    return {name: schema_of(columns, f"{what}[{name!r}]") for name, columns in given.items()}


def _simple(what: str, given: Any) -> pl.DataType:
    dtype = type_of(given, what)
    if dtype.is_nested() or dtype in (pl.Null, pl.Object):
        raise FlowError(f"{what}({given!r}): {dtype} is not a simple type; use list_of(...) or map_of(...) of simple types")
    return dtype


def _ttl(what: str, ttl: float | str | None) -> int | None:
    try:
        length = seconds(ttl)
    except Exception as error:
        raise FlowError(f"{what}: ttl={ttl!r} is not a duration; write '10s', '1h' or a number of seconds") from error
    if length is not None and round(length * 1e6) < 1:
        raise FlowError(f"{what}: ttl={ttl!r} is too short")
    return None if length is None else round(length * 1e6)
