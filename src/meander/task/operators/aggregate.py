"""Aggregates per key, for good: one row per key (one of all where there is no key), and tables of values where aggregates keep many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from meander.aggregates import Agg, Part
from meander.plan.operators import Aggregate
from meander.state.grouping import Index
from meander.state.hashing import Hashes
from meander.state.reading import AggregateReader
from meander.state.segment import ALL
from meander.state.table import Kept, find_states, merge_found
from meander.state.values import ValueTable, lengths, new_members, numbered, whole_lists
from meander.task.operators.contract import Emitted, Intake, Partial, Reader, Stateful
from meander.task.operators.folding import fold_after, fold_before, hashes_of, take
from meander.task.operators.over_changes import make_over_changes
from meander.task.operators.place import Place, parts_of
from meander.task.operators.replacing import replaced
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows


@dataclass(frozen=True)
class Aggregation(Stateful):
    """Folds rows into one state per key; emits every key that was touched."""

    parts: Mapping[str, Part]
    """The columns of partial states."""
    stored: Mapping[str, Part]
    """The columns of a key's row: the same, except that values with a table of their own are only
    counted here."""
    values: tuple[ValueTable, ...]
    aggs: tuple[Agg, ...]
    retracts: bool = False
    """Whether a reader needs removals."""
    finds: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept(self.keys), **{table.name: Kept(table.identity) for table in self.values}}

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        if self.keys == (ALL,):
            rows = rows.with_frame(rows.frame.with_columns(pl.lit(0, pl.Int8()).alias(ALL)))
        return fold_before(rows, hashes_of(rows.frame, self.keys), self.keys, self.parts, intake)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        """Merge the arrived partial states with the stored ones, and write the changed rows."""
        if not arrived:
            return None
        keys, hashes, states = fold_after(arrived, self.keys, self.parts)
        workspace.lap("fold")
        for values in self.values:
            lists = states[values.values]
            counts = lengths(lists)
            if not values.is_list:
                counts, rows = new_members(values, *workspace.stored(values.name), keys, hashes, lists, workspace.key_groups)
                workspace.write(values.name, rows)
            states[values.count] = pl.Series(values.count, counts)
        which, old = find_states(*workspace.stored(self.name, hashes), keys, hashes, self.stored, workspace.key_groups)
        before = self._before(workspace, keys, hashes, which, old) if self.retracts else None
        table = merge_found(which, old, keys, hashes, states, self.stored)
        whole: list[pl.Series] = []
        for values in self.values:
            if values.is_list:
                lists, totals = states[values.values], table.get_column(values.count).to_numpy()
                whole.append(whole_lists(values, *workspace.stored(values.name), keys, hashes, lists, totals, workspace.key_groups))
                workspace.write(values.name, numbered(values, keys, hashes, lists, totals))
        workspace.write(self.name, table)
        after = self._finished(table.with_columns(whole))
        return Emitted(after, hashes) if before is None else replaced(before, which, after, np.arange(len(hashes)), hashes)

    def _before(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes, which: Index, old: Mapping[str, pl.Series]) -> pl.DataFrame:
        """The rows that were emitted for the stored keys: for each of ``which``, in this order."""
        if len(which) == 0:
            return self.schema.to_frame()
        rows = pl.DataFrame([*take(keys, which), *old.values()])
        order = np.argsort(which, kind="stable")
        for values in self.values:
            if values.is_list:
                totals = old[values.count].to_numpy()[order]
                none = pl.Series(values.values, [[]] * len(which), dtype=self.parts[values.values].dtype)
                lists = whole_lists(
                    values, *workspace.stored(values.name), keys[which[order]], hashes[which[order]], none, totals, workspace.key_groups
                )
                rows = rows.with_columns(lists.gather(np.argsort(order)))
        return self._finished(rows)

    def _finished(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select([*(pl.col(key) for key in self.keys if key != ALL), *(agg.finish() for agg in self.aggs)])

    def reader(self) -> Reader:
        return AggregateReader(self.name, self.keys, self.aggs, self.schema, {name: part.dtype for name, part in self.stored.items()})


def make_aggregation(place: Place, op: Aggregate) -> Stateful:
    if place.over_changes:
        return make_over_changes(place, op)
    parts = parts_of(op.aggs, place.schema())
    keys = op.keys or (ALL,)
    values = tuple(ValueTable.of(place.node.name, keys, agg) for agg in op.aggs if agg.keeps)
    counted = {table.values: (table.count, table.count_part()) for table in values}
    stored = dict(counted.get(name, (name, part)) for name, part in parts.items())
    return Aggregation(**place.common(keys), parts=parts, stored=stored, values=values, aggs=op.aggs, retracts=place.retracts)
