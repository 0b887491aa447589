"""Aggregates per key over a stream of changes: rows are added and removed, and a key without rows
is removed itself.

State is a row per key, with the number of rows in its group, and a table per aggregate that needs
its values (see ``bags``). Removed rows are sent as partial states with the opposite sign: before
the exchange, added rows and removed rows are folded apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import polars as pl

from meander.aggregates import Part
from meander.aggregates.changing import CAME, WENT, OverChanges, over_changes
from meander.aggregates.changing import Bag as BagAggregate
from meander.errors import Corrupted
from meander.plan.change.layout import ROWS
from meander.plan.computed import with_computed
from meander.plan.operators import Aggregate
from meander.state.grouping import Index
from meander.state.hashing import Hashes
from meander.state.segment import DELETED
from meander.state.table import Kept, conform, find_states, merge_found
from meander.stored import stored
from meander.task.operators.bags import OWNER, Bag
from meander.task.operators.contract import Emitted, Intake, Partial, Reader, Stateful
from meander.task.operators.folding import fold_after, fold_before, hashes_of, take
from meander.task.operators.place import Place, parts_of
from meander.task.operators.replacing import replaced
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows


@dataclass(frozen=True)
class AggregationOverChanges(Stateful):
    """Folds rows that have come and rows that are gone into one state per key; emits every key that was touched and is there."""

    parts: Mapping[str, Part]
    """The columns of partial states."""
    taken: tuple[pl.Expr, ...]
    """The partial states of removed rows, computed from those that added rows would have."""
    stored: Mapping[str, Part]
    """The columns of a key's row."""
    bags: Mapping[str, Bag]
    """By aggregate."""
    aggs: tuple[OverChanges, ...]
    retracts: bool
    takes_changes: ClassVar[bool] = True
    finds: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept(self.keys), **{bag.name: Kept(bag.identity) for bag in self.bags.values()}}

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        folded = fold_before(rows, hashes_of(rows.frame, self.keys), self.keys, self.parts, intake)
        return folded if rows.sign > 0 else folded.with_columns(self.taken)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        if not arrived:
            return None
        keys, hashes, states = fold_after(arrived, self.keys, self.parts)
        workspace.lap("fold")
        which, old = find_states(*workspace.stored(self.name, hashes), keys, hashes, self.stored, workspace.key_groups)
        table = merge_found(which, old, keys, hashes, states, self.stored)
        rows = table.get_column(ROWS).to_numpy()
        if (rows < 0).any():
            raise Corrupted(f"operator '{self.name}': rows are gone that never came; this is a defect of the flow or of Meander")
        before, after = pl.DataFrame([*take(keys, which), *old.values()]), table
        for agg in self.aggs:
            if agg.name in self.bags:
                was, now = self._bag(workspace, agg, keys, hashes, states)
                before, after = before.with_columns(was.gather(which)), after.with_columns(now)
        there = np.flatnonzero(rows > 0)
        self._write(workspace, table, rows, which)
        new = self._finished(after)[there]
        if not self.retracts:
            return Emitted(new, hashes[there])
        return replaced(self._finished(before) if len(which) else new[:0], which, new, there, hashes)

    def _bag(
        self, workspace: Workspace, agg: OverChanges, keys: pl.DataFrame, hashes: Hashes, states: Mapping[str, pl.Series]
    ) -> tuple[pl.Series, pl.Series]:
        """An aggregate's values for every key, before and after."""
        bag = self.bags[agg.name]
        (value,) = bag.columns
        came = _values(states[f"{agg.name}.{CAME}"], value, bag.number, 1)
        went = _values(states[f"{agg.name}.{WENT}"], value, bag.number, -1)
        before, after = bag.change(workspace, keys, hashes, pl.concat([came, went]))
        return self._of_values(agg, before, len(hashes)), self._of_values(agg, after, len(hashes))

    def _of_values(self, agg: OverChanges, rows: pl.DataFrame, keys: int) -> pl.Series:
        return values_of(agg, rows, pl.DataFrame({OWNER: np.arange(keys)}), self.schema[agg.name], OWNER)

    def _write(self, workspace: Workspace, table: pl.DataFrame, rows: Index, which: Index) -> None:
        """Write the rows that are present, and deletions of the rows that no longer are."""
        known = np.zeros(len(rows), np.bool_)
        known[which] = True
        keep = (rows > 0) | known
        gone = (rows == 0) & known
        table = table.filter(pl.Series(keep))
        workspace.write(self.name, table.with_columns(pl.Series(DELETED, gone[keep])) if gone.any() else table)

    def _finished(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select([*(pl.col(key) for key in self.keys), *(agg.finish() for agg in self.aggs)])

    def reader(self) -> Reader:
        types = {key: self.schema[key] for key in self.keys} | {name: part.dtype for name, part in self.stored.items()}
        return OverChangesReader(self.name, self.keys, self.aggs, self.schema, types, self.bags)


@stored("aggregate_over_changes_state", called={"aggs": "aggregates"})
@dataclass(frozen=True)
class OverChangesReader:
    """Shows an aggregate's keys and finished values."""

    operator: str
    keys: tuple[str, ...]
    aggs: tuple[OverChanges, ...]
    schema: pl.Schema
    types: Mapping[str, pl.DataType]
    bags: Mapping[str, Bag]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        rows = conform(tables[self.operator], self.types)
        for agg in self.aggs:
            if (bag := self.bags.get(agg.name)) is not None:
                values = tables.get(bag.name)
                keys = {key: self.schema[key] for key in self.keys}
                none = pl.Schema({**keys, bag.columns[0]: pl.Null(), bag.number: pl.Int64()}).to_frame()
                values = (
                    none
                    if values is None
                    else values.with_columns([pl.col(key).cast(dtype) for key, dtype in keys.items()]).sort(bag.columns)
                )
                rows, values = (some.with_columns(pl.lit(0).alias(OWNER)) for some in (rows, values))  # there may be no key
                rows = rows.with_columns(values_of(agg, values, rows.select(OWNER, *self.keys), self.schema[agg.name], OWNER, *self.keys))
        return rows.select([*(pl.col(key) for key in self.keys), *(agg.finish() for agg in self.aggs)])


def _values(lists: pl.Series, value: str, number: str, sign: int) -> pl.DataFrame:
    """All values of all lists, each with the number of the list it is in."""
    lengths = lists.list.len().fill_null(0).to_numpy()
    owners = np.repeat(np.arange(len(lists)), lengths)
    filled = lists.filter(pl.Series(lengths > 0)).explode()
    signs = np.full(len(owners), sign, np.int64)
    return pl.DataFrame([pl.Series(OWNER, owners, pl.Int64()), filled.alias(value), pl.Series(number, signs, pl.Int64())])


def values_of(agg: OverChanges, rows: pl.DataFrame, everyone: pl.DataFrame, dtype: pl.DataType, *owner: str) -> pl.Series:
    """An aggregate's result for everyone, from the rows of its bag."""
    assert isinstance(agg, BagAggregate)
    if rows.height == 0:
        return everyone.with_columns(agg.fold_none(dtype).alias(agg.name)).get_column(agg.name)
    grouped = rows.group_by(owner, maintain_order=True).agg(agg.of_values().cast(dtype), pl.lit(True).alias("__some"))
    joined = everyone.join(grouped, on=list(owner), how="left", nulls_equal=True, maintain_order="left")
    none = pl.when(pl.col("__some").is_null()).then(agg.fold_none(dtype)).otherwise(pl.col(agg.name))
    return joined.select(none.alias(agg.name)).to_series()


def make_over_changes(place: Place, op: Aggregate) -> AggregationOverChanges:
    schema, name = with_computed(place.schema(), op.aggs), place.node.name
    aggs = tuple(over_changes(agg, schema) for agg in op.aggs)
    rows = Part(pl.Int64(), pl.len().cast(pl.Int64), pl.col(ROWS).sum(), "sum", ("rows", None))
    parts = {ROWS: rows, **parts_of(aggs, schema)}
    taken = [(0 - pl.col(ROWS)).alias(ROWS), *(expr for agg in aggs for expr in agg.taken(agg.parts(schema)))]
    bags = {
        agg.name: Bag(f"{name}.{quote(agg.name, safe='')}", op.keys, (f"{agg.name}.value",), f"{agg.name}.n") for agg in aggs if agg.bag
    }
    travels = {f"{agg.name}.{part}" for agg in aggs if agg.bag for part in (CAME, WENT)}
    stored = {part: spec for part, spec in parts.items() if part not in travels}
    made: dict[str, Any] = {"parts": parts, "taken": tuple(taken), "stored": stored, "bags": bags, "aggs": aggs}
    return AggregationOverChanges(**place.common(op.keys), **made, retracts=place.retracts)
