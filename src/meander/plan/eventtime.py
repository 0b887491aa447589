"""Operators of event time, and the column that is a stream's time. Their work on rows is in
``task.operators``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, runtime_checkable

import polars as pl

from meander.aggregates import Agg
from meander.aggregates.by_time import follows_order
from meander.errors import FlowError
from meander.familiar.values import no_column_name
from meander.plan.code import NO_CODE, Code
from meander.plan.operators import Aggregate, Select, Union, aggregated, expect_inputs
from meander.plan.schemas import missing_column, show_schema
from meander.plan.sessions import RowSession
from meander.plan.windows import Session, Window, show_duration
from meander.stored import stored

if TYPE_CHECKING:
    from meander.plan.graph import Node

START, END = "window_start", "window_end"


@dataclass(frozen=True)
class Time:
    """Where the rows of a stream have their time, and which watermarks it follows."""

    column: str
    shift: int
    """Microseconds that are added to the column: a window's row is at its last microsecond."""
    marks: frozenset[str]
    delay: int = 0
    """How far behind the marks rows of this stream can come."""


@runtime_checkable
class KeepsTime(Protocol):
    """A stateful operator whose output rows have a time. Operators without this protocol emit rows
    without one."""

    def time_after(self, inputs: Sequence[Time | None]) -> Time | None:
        """The time of the rows that leave it, given that of the rows of each input."""


@runtime_checkable
class HasLate(Protocol):
    """A stateful operator that refuses rows which come too late."""

    @property
    def has_late(self) -> bool: ...


@runtime_checkable
class GoesByTime(Protocol):
    """A stateful operator that is made with the time of its input, and is made again when that time
    changes."""

    @property
    def by_event_time(self) -> bool: ...

    def retimed(self, times: Sequence[Time], schemas: Sequence[pl.Schema]) -> Self:
        """The same operator for these times and columns of its inputs. Asked only where it goes by event time."""


@stored("watermark")
@dataclass(frozen=True, eq=False)
class Watermark:
    """Says which column is the time of a row, and how much out of order rows can be."""

    kind: ClassVar[str] = "watermark"
    stateful: ClassVar[bool] = False
    column: str
    grace: int
    idle: int | None
    max_ahead: int | None = None
    """How far ahead of the decisions' clock a row can be."""

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        if not isinstance(self.column, str):
            raise FlowError(f"watermark {name!r}: {no_column_name(self.column)}; columns are {show_schema(schema)}")
        if self.column not in schema:
            raise FlowError(f"watermark {name!r}: {missing_column(self.column, schema)}")
        if not isinstance(schema[self.column], pl.Datetime):
            raise FlowError(
                f"watermark {name!r}: column {self.column!r} is {schema[self.column]}; it must be a Datetime: "
                f"{make_time(self.column, schema[self.column])}"
            )
        return schema

    def describe(self) -> str:
        idle = "" if self.idle is None else f", idle after {show_duration(self.idle)}"
        ahead = "" if self.max_ahead is None else f", at most {show_duration(self.max_ahead)} ahead"
        return f"{self.column}, grace {show_duration(self.grace)}{idle}{ahead}"

    def canonical(self) -> str:
        ahead = "" if self.max_ahead is None else f" {self.max_ahead}"
        return f"{self.column} {self.grace} {self.idle}{ahead}"

    def code(self) -> Code:
        return NO_CODE


@stored("window", called={"aggs": "aggregates"})
@dataclass(frozen=True, eq=False)
class WindowAggregate:
    """Aggregates per key and window. Emits a window when it closes, or whenever it changes."""

    kind: ClassVar[str] = "window"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    aggs: tuple[Agg, ...]
    window: Window | Session
    time: str | None
    """The column of the rows' time; None where windows go by the clock."""
    shift: int
    emit: str
    lateness: int

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
        if self.time is not None and self.time not in schema:
            raise FlowError(f"window {name!r}: its time: {missing_column(self.time, schema)}")
        if not self.aggs:
            raise FlowError(f"window {name!r}: it needs at least one aggregate, as in .window(...).aggregate(count())")
        inner = aggregated(self.keys, self.aggs, schema, name)
        output: dict[str, pl.DataType] = {key: schema[key] for key in self.keys}
        for column in (START, END):
            if column in output or column in {agg.name for agg in self.aggs}:
                raise FlowError(f"window {name!r}: a column is named {column!r}, which is the window's own; rename it first")
            output[column] = pl.Datetime("us") if self.time is None else schema[self.time]
        output.update((agg.name, inner[agg.name]) for agg in self.aggs)
        return pl.Schema(output)

    def time_after(self, inputs: Sequence[Time | None]) -> Time | None:
        (before,) = inputs
        if before is None or self.time is None:
            return None
        # A session closes when the mark is above its end, and not yet when it is there.
        return Time(END, 0 if isinstance(self.window, Session) else -1, before.marks, before.delay + self.lateness)

    def describe(self) -> str:
        by = f"by {', '.join(self.keys)}, " if self.keys else ""
        late = f", lateness {show_duration(self.lateness)}" if self.lateness else ""
        aggs = ", ".join(agg.describe() for agg in self.aggs)
        of = "" if self.time is None else f" of {self.time}"
        return f"{by}{self.window.describe()}{of}: {aggs}; emit {self.emit}{late}"

    def canonical(self) -> str:
        return f"{list(self.keys)} {self.window} {self.time} {self.shift} {self.emit} {self.lateness} {[a.describe() for a in self.aggs]}"

    def code(self) -> Code:
        return Aggregate(self.keys, self.aggs).code()


@stored("session", called={"aggs": "aggregates"})
class SessionAggregate(WindowAggregate):
    """Aggregates per key and session. Sessions that meet become one."""

    kind: ClassVar[str] = "session"

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        for agg in self.aggs:
            if follows_order(agg) and f"{agg.name}.time" in self.keys:
                raise FlowError(f"session {name!r}: {agg.call()}: its state column '{agg.name}.time' has the name of a key: rename it")
        if isinstance(self.window, RowSession):
            self.window.check(expect_inputs(self.kind, name, inputs, 1)[0], name)
        return super().output_schema(inputs, name)

    def canonical(self) -> str:
        return super().canonical() + (f" {self.window.canonical()}" if isinstance(self.window, RowSession) else "")


@stored("late")
@dataclass(frozen=True, eq=False)
class Late:
    """The rows of an operator's input that came too late for it."""

    kind: ClassVar[str] = "late"
    stateful: ClassVar[bool] = False
    operator: str
    side: int = 0
    """The number of the input."""

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        return schema

    def describe(self) -> str:
        return f"what came too late for {self.operator}"

    def canonical(self) -> str:
        return f"{self.operator} {self.side}" if self.side else self.operator

    def code(self) -> Code:
        return NO_CODE


def time_of(nodes: Sequence[Node], schemas: Mapping[str, pl.Schema], name: str) -> Time | None:
    """The time of the rows that leave an operator; None where they have none."""
    by_name = {node.name: node for node in nodes}

    def find(at: str) -> Time | None:
        node = by_name[at]
        if isinstance(node.op, Watermark):
            return Time(node.op.column, 0, frozenset([at]))
        if not node.inputs:
            return None
        found = [find(name) for name in node.inputs]
        if node.op.stateful:
            return node.op.time_after(found) if isinstance(node.op, KeepsTime) else None
        first = found[0]
        if first is not None and isinstance(node.op, Select):
            first = replace(first, column=node.op.name_of(first.column) or first.column)
        if first is None or first.column not in schemas[at]:
            return None
        if not isinstance(node.op, Union):
            return first
        known = [time for time in found if time is not None]
        if len(known) < len(found) or any((time.column, time.shift) != (first.column, first.shift) for time in known):
            return None
        return Time(first.column, first.shift, frozenset().union(*(t.marks for t in known)), max(t.delay for t in known))

    return find(name)


def make_time(column: str, dtype: pl.DataType) -> str:
    """The way to make a column a time, for messages.

    >>> make_time("ts", pl.String())
    "cast it first, as in .with_columns(pl.col('ts').str.to_datetime('%Y-%m-%d %H:%M:%S'))"
    """
    if dtype == pl.String:
        return f"cast it first, as in .with_columns(pl.col({column!r}).str.to_datetime('%Y-%m-%d %H:%M:%S'))"
    if dtype.is_integer() or dtype.is_float():
        return f"cast it first, as in .with_columns(pl.from_epoch({column!r}, 'ms'))"
    return f"cast it first, as in .with_columns(pl.col({column!r}).cast(pl.Datetime('us')))"


def no_time(operator: str, stream: str, schema: pl.Schema) -> FlowError:
    return FlowError(
        f"{operator} after {stream!r}: its rows have no event time; write .watermark('column', grace='5s') before it, and keep that "
        f"column; columns are {show_schema(schema)}"
    )
