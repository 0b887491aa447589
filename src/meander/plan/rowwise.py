"""Operators that keep whole rows per key: the first of equal ones, the newest, the best. Their work
on rows is in ``task.operators``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import polars as pl

from meander.errors import FlowError
from meander.plan.code import NO_CODE, Code
from meander.plan.eventtime import END, START, Time
from meander.plan.operators import expect_inputs
from meander.plan.schemas import KEY_TYPES, is_key_type, missing_column
from meander.plan.windows import Window, show_duration
from meander.stored import stored

RANK, CHANGED = "rank", "changed"


@stored("deduplicate")
@dataclass(frozen=True, eq=False)
class Deduplicate:
    """The first row of every key; with a time to live, the first and every one that is at least that much later than the last one kept."""

    kind: ClassVar[str] = "deduplicate"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    ttl: int | None = None
    time: str | None = None
    shift: int = 0

    @property
    def has_late(self) -> bool:
        return self.ttl is not None

    @property
    def by_event_time(self) -> bool:
        return self.ttl is not None

    def retimed(self, times: Sequence[Time], schemas: Sequence[pl.Schema]) -> Self:
        return replace(self, time=times[0].column, shift=times[0].shift)

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        check_keys(self.kind, name, self.keys, schema)
        if self.time is not None and self.time not in schema:
            raise FlowError(f"deduplicate {name!r}: its time: {missing_column(self.time, schema)}")
        return schema

    def time_after(self, inputs: Sequence[Time | None]) -> Time | None:
        return inputs[0]

    def describe(self) -> str:
        return f"by {', '.join(self.keys)}" + ("" if self.ttl is None else f", within {show_duration(self.ttl)} of {self.time}")

    def canonical(self) -> str:
        return f"{list(self.keys)} {self.ttl} {self.time} {self.shift}"

    def code(self) -> Code:
        return NO_CODE


@stored("latest")
@dataclass(frozen=True, eq=False)
class Latest:
    """The newest row of every key, by some columns, or by arrival."""

    kind: ClassVar[str] = "latest"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    order: tuple[str, ...] = ()

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        check_keys(self.kind, name, self.keys, schema)
        check_order(self.kind, name, "order", self.order, schema)
        return schema

    def time_after(self, inputs: Sequence[Time | None]) -> Time | None:
        """It emits only rows that have just arrived."""
        return inputs[0]

    def describe(self) -> str:
        return f"by {', '.join(self.keys)}, " + (f"the largest {', '.join(self.order)}" if self.order else "the last to arrive")

    def canonical(self) -> str:
        return f"{list(self.keys)} {list(self.order)}"

    def code(self) -> Code:
        return NO_CODE


@stored("top")
@dataclass(frozen=True, eq=False)
class Top:
    """The best rows of every key, ranked."""

    kind: ClassVar[str] = "top"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    n: int
    by: tuple[str, ...]
    descending: tuple[bool, ...]
    ties: str

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        check_keys(self.kind, name, self.keys, schema)
        if not self.by:
            raise FlowError(f"top {name!r}: say by which column, as in top(10, by='price')")
        check_order(self.kind, name, "by", self.by, schema)
        for column in (RANK, CHANGED):
            if column in schema:
                raise FlowError(f"top {name!r}: a column is named {column!r}, which is its own; rename it first")
        return pl.Schema({**schema, RANK: pl.Int64(), CHANGED: pl.Boolean()})

    def describe(self) -> str:
        by = ", ".join(f"{column}{' descending' if down else ''}" for column, down in zip(self.by, self.descending, strict=True))
        return f"{self.n} by {', '.join(self.keys)}: by {by}, of equals the {self.ties}"

    def canonical(self) -> str:
        return f"{list(self.keys)} {self.n} {list(self.by)} {list(self.descending)} {self.ties}"

    def code(self) -> Code:
        return NO_CODE


@stored("window_top")
@dataclass(frozen=True, eq=False)
class WindowTop:
    """The best rows of every key and window, ranked, when the window closes."""

    kind: ClassVar[str] = "window_top"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    n: int
    by: tuple[str, ...]
    descending: tuple[bool, ...]
    ties: str
    window: Window
    time: str | None
    shift: int

    @property
    def has_late(self) -> bool:
        return self.time is not None

    @property
    def by_event_time(self) -> bool:
        return self.time is not None

    def retimed(self, times: Sequence[Time], schemas: Sequence[pl.Schema]) -> Self:
        return replace(self, time=times[0].column, shift=times[0].shift)

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        if self.keys:
            check_keys(self.kind, name, self.keys, schema)
        if self.time is not None and self.time not in schema:
            raise FlowError(f"top {name!r}: its time: {missing_column(self.time, schema)}")
        if not self.by:
            raise FlowError(f"top {name!r}: say by which column, as in top(10, by='price')")
        check_order(self.kind, name, "by", self.by, schema)
        if RANK in schema:
            raise FlowError(f"top {name!r}: a column is named {RANK!r}, which is its own; rename it first")
        if own := [column for column in (*self.keys, *self.by) if column in (START, END)]:
            raise FlowError(f"top {name!r}: {own[0]!r} is a column of windows, and there are new ones here; rename it first")
        # The windows of a window's rows are others: the new ones take their place.
        rows = {column: dtype for column, dtype in schema.items() if column not in (START, END)}
        when = pl.Datetime("us") if self.time is None else schema[self.time]
        return pl.Schema({START: when, END: when, **rows, RANK: pl.Int64()})

    def time_after(self, inputs: Sequence[Time | None]) -> Time | None:
        (before,) = inputs
        return None if before is None or self.time is None else Time(END, -1, before.marks, before.delay)

    def describe(self) -> str:
        by = ", ".join(f"{column}{' descending' if down else ''}" for column, down in zip(self.by, self.descending, strict=True))
        keys = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"{self.n} per {self.window.describe()}{keys}: by {by}, of equals {'all' if self.ties == 'all' else f'the {self.ties}'}"

    def canonical(self) -> str:
        return f"{list(self.keys)} {self.n} {list(self.by)} {list(self.descending)} {self.ties} {self.window} {self.time} {self.shift}"

    def code(self) -> Code:
        return NO_CODE


def check_keys(kind: str, name: str, keys: Sequence[str], schema: pl.Schema) -> None:
    """FlowError where the keys cannot be ones."""
    if not keys:
        raise FlowError(f"{kind} {name!r}: no column is given to tell rows apart")
    for key in keys:
        if key not in schema:
            raise FlowError(f"{kind} {name!r}: {missing_column(key, schema)}")
        if not is_key_type(schema[key]):
            raise FlowError(f"{kind} {name!r}: column {key!r} is {schema[key]}; keys can be {KEY_TYPES}: cast it first")
        if list(keys).count(key) > 1:
            raise FlowError(f"{kind} {name!r}: column {key!r} is given twice")


def check_order(kind: str, name: str, what: str, columns: Sequence[str], schema: pl.Schema) -> None:
    """FlowError where rows cannot be ordered by these columns."""
    for column in columns:
        if column not in schema:
            raise FlowError(f"{kind} {name!r}: {what}: {missing_column(column, schema)}")
        if schema[column].is_nested() or isinstance(schema[column], pl.Object):
            raise FlowError(f"{kind} {name!r}: {what}: column {column!r} is {schema[column]}, which has no order; compute a number first")


def ranked(
    stream: str, n: int, by: str | Sequence[str], descending: bool | Sequence[bool], ties: str, known: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """The columns that rows are ranked by, and the direction of each; FlowError where an argument of ``top`` makes no sense."""
    after = f"top after {stream!r}"
    columns = names_of(by, f"{after}: by")
    downs = (descending,) * len(columns) if isinstance(descending, bool) else tuple(descending)
    if type(n) is not int or n < 1:
        raise FlowError(f"{after}: n={n!r}; it must be a whole number above 0")
    if len(downs) != len(columns) or {type(down) for down in downs} - {bool}:
        raise FlowError(f"{after}: descending={descending!r}; give one True or False, or one for each of {', '.join(columns)}")
    if ties not in known:
        raise FlowError(f"{after}: ties={ties!r}; there are {' and '.join(map(repr, known))}")
    return columns, downs


def names_of(given: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    """Columns that were given as one name or several."""
    names = (given,) if isinstance(given, str) else () if given is None else tuple(given)
    for name in names:
        if type(name) is not str:
            raise FlowError(f"{what}={given!r}; {name!r} is not a column's name")
    return names
