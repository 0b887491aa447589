"""Windows of a number of rows, by key. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from meander.aggregates import Agg
from meander.errors import FlowError
from meander.plan.code import Code
from meander.plan.operators import Aggregate, aggregated, expect_inputs
from meander.stored import stored

NUMBER = "window_number"
SLOT, PANE, ROWS = "__slot", "__pane", "__rows"
"""Of a stored piece: its place among those that a key has, its number since the key's first row, and how many rows are in it."""
BESIDE: dict[str, pl.DataType] = {SLOT: pl.Int64(), PANE: pl.Int64(), ROWS: pl.Int64()}
_MOST = 1 << 53
"""Rows of a window: some times as many can still be counted."""


@stored("rows_window")
@dataclass(frozen=True)
class CountWindow:
    """Windows of ``size`` rows that begin every ``step`` rows. Made by ``count_window``."""

    size: int
    step: int

    @property
    def panes(self) -> int:
        """Of how many pieces of ``step`` rows a window is made, which is how many of them a key has."""
        return self.size // self.step

    def describe(self) -> str:
        return f"count_window({self.size}{'' if self.size == self.step else f', step {self.step}'})"


def count_window(size: int, step: int | None = None) -> CountWindow:
    """Windows of ``size`` rows of a key, in the order of their arrival; with ``step`` one begins every so many rows.

    A window is emitted when it is full. Windows that are not full stay in the state, also at a
    flush.

    >>> count_window(100).describe(), count_window(100, step=10).panes
    ('count_window(100)', 10)
    """
    every = size if step is None else step
    given: tuple[tuple[str, object], ...] = (("size", size), ("step", every))
    for what, number in given:
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _MOST:
            raise FlowError(f"count_window: {what}={number!r}; it is a number of rows, from 1 to 2^53: md.count_window(100, step=10)")
    if size % every:
        raise FlowError(f"count_window({size}, step={every}): the size must be a multiple of the step")
    return CountWindow(size, every)


@stored("count_window", called={"aggs": "aggregates"})
@dataclass(frozen=True, eq=False)
class CountAggregate:
    """Aggregates per key and window of so many rows. Emits a window when it is full."""

    kind: ClassVar[str] = "count_window"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    aggs: tuple[Agg, ...]
    window: CountWindow

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        if not self.aggs:
            raise FlowError(f"count_window {name!r}: it needs at least one aggregate, as in .window(...).aggregate(count())")
        inner = aggregated(self.keys, self.aggs, schema, name)
        if met := {NUMBER, *BESIDE} & {*inner, *self.keys}:
            raise FlowError(f"count_window {name!r}: a column is named {min(met)!r}, which is its own; rename it first")
        output = {key: schema[key] for key in self.keys}
        return pl.Schema({**output, NUMBER: pl.Int64(), **{agg.name: inner[agg.name] for agg in self.aggs}})

    def needs(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Those of its input's columns that it folds or is keyed by. One at least: rows without columns are none."""
        wanted = {*self.keys}
        for agg in self.aggs:
            wanted.update([agg.column] if agg.expr is not None and agg.column is not None else agg.inputs())
        return tuple(column for column in columns if column in wanted) or tuple(columns[:1])

    def describe(self) -> str:
        by = f"by {', '.join(self.keys)}, " if self.keys else ""
        return f"{by}{self.window.describe()}: {', '.join(agg.describe() for agg in self.aggs)}"

    def canonical(self) -> str:
        return f"{list(self.keys)} {self.window} {[agg.describe() for agg in self.aggs]}"

    def code(self) -> Code:
        return Aggregate(self.keys, self.aggs).code()


def only_full(emit: str | None, lateness: object, what: str) -> None:
    """FlowError where something is asked of windows of rows that only windows of time have."""
    if emit not in (None, "closed"):
        raise FlowError(f"{what}: emit={emit!r}; windows of a number of rows come once, when they are full: leave emit out")
    if lateness:
        raise FlowError(f"{what}: lateness={lateness!r}; windows of a number of rows go by arrival, and no row is late: leave it out")
