"""The best rows of every key, ranked. State is one row per key and rank; an epoch writes the ranks that have another row than before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.plan.rowwise import CHANGED, RANK, Top
from meander.state.grouping import group_rows
from meander.state.segment import HASH
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Partial, Stateful
from meander.task.operators.place import Place
from meander.task.operators.ranking import ARRIVAL, OWNER, Order, ranked_anew
from meander.task.operators.top_over_changes import make_top_over_changes
from meander.task.operators.wholerows import in_order, send_whole
from meander.task.operators.workspace import Workspace
from meander.task.rows import UNIT, Rows


@dataclass(frozen=True)
class Best(Stateful):
    """Emits a key's whole list when it has changed."""

    order: Order
    retracts: bool = False
    """Whether a reader needs removals."""

    @property
    def columns(self) -> list[str]:
        """Those of the rows."""
        return [column for column in self.schema if column not in (RANK, CHANGED)]

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept((*self.keys, RANK))}

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        """Only the best rows of a key and unit can be among the best of all."""
        frame = send_whole(rows, self.keys, intake)
        units = None if rows.units is None else frame.get_column(UNIT).to_numpy()
        groups = group_rows(frame.select(self.keys), frame.get_column(HASH).to_numpy(), units)
        if len(groups.starts) == frame.height:
            return frame
        owned = frame[groups.order].with_columns(groups.ids().alias(OWNER), pl.Series(ARRIVAL, np.arange(frame.height)))
        return self.order.best(owned).select(frame.columns)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        found = in_order(arrived)
        if found is None:
            return None
        frame, hashes = found
        groups = group_rows(frame.select(self.keys), hashes)
        keys = frame.select(self.keys)[groups.heads]
        new = frame[groups.order].with_columns(groups.ids().cast(pl.Int64).alias(OWNER), pl.Series(ARRIVAL, np.arange(frame.height)))
        workspace.lap("fold")
        columns = [column for column in self.columns if column not in self.keys]
        which, stored = workspace.find_rows(self.name, keys, groups.hashes, (RANK,), columns)
        rows = [new.select(OWNER, ARRIVAL, *self.columns, pl.lit(None, pl.Int64).alias(RANK))]
        if len(which):
            old = stored.with_columns(keys[which].get_columns()).with_columns(pl.Series(OWNER, which.astype(np.int64)))
            rows.append(old.with_columns(self.order.arrival_of_stored(pl.col(RANK)).alias(ARRIVAL)).select(rows[0].columns))
        best = self.order.best(pl.concat(rows))
        best = best.with_columns(self.order.rank().alias("__place")).with_columns(
            (pl.col("__place").ne_missing(pl.col(RANK))).alias(CHANGED)
        )
        best = best.filter(pl.col(CHANGED).any().over(OWNER)).with_columns(pl.col("__place").alias(RANK))
        if best.height == 0:
            return None
        best = best.with_columns(pl.Series(HASH, groups.hashes[best.get_column(OWNER).to_numpy()]))
        workspace.write(self.name, best.filter(CHANGED).select(HASH, *self.keys, RANK, *columns))
        if not self.retracts:
            return Emitted(best.select(self.schema.names()), best.get_column(HASH).to_numpy())
        old = rows[1].with_columns(pl.Series(HASH, groups.hashes[which])) if len(which) else best[:0]
        gone = old.join(best.filter(CHANGED).select(OWNER, RANK), on=[OWNER, RANK], how="semi", maintain_order="left")
        return ranked_anew(gone, best, self.schema)

    def reader(self) -> TopReader:
        return TopReader(self.keys, (*self.columns, RANK))


@stored("top_state")
@dataclass(frozen=True)
class TopReader:
    """Shows the lists, rank by rank."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        (rows,) = tables.values()
        return rows.select(self.columns).sort(*self.keys, RANK)


def make_top(place: Place, op: Top) -> Stateful:
    order = Order(op.n, op.by, op.descending, op.ties)
    if place.over_changes:
        return make_top_over_changes(place, op.keys, order)
    return Best(**place.common(op.keys), order=order, retracts=place.retracts)
