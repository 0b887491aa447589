"""The best rows of every key, ranked. State is one row per key and rank; an epoch writes the ranks that have another row than before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.engine.operators.contract import Emitted, Partial, Seat, Stateful
from meander.engine.operators.desk import Desk
from meander.engine.operators.place import Place
from meander.engine.operators.wholerows import in_order, send_whole
from meander.engine.rows import UNIT, Rows
from meander.plan.rowwise import CHANGED, RANK, Top
from meander.state.grouping import group_rows
from meander.state.segment import HASH

_OWNER, _ARRIVAL = "__owner", "__arrival"


@dataclass(frozen=True)
class Best(Stateful):
    """Emits a key's whole list when it has changed."""

    n: int
    by: tuple[str, ...]
    descending: tuple[bool, ...]
    ties: str

    @property
    def columns(self) -> list[str]:
        """Those of the rows."""
        return [column for column in self.schema if column not in (RANK, CHANGED)]

    def tables(self) -> dict[str, tuple[str, ...]]:
        return {self.name: (*self.keys, RANK)}

    def before(self, rows: Rows, side: int, seat: Seat) -> pl.DataFrame:
        """Only the best rows of a key and unit can be among the best of all."""
        frame = send_whole(rows, self.keys, seat)
        units = None if rows.units is None else frame.get_column(UNIT).to_numpy()
        groups = group_rows(frame.select(self.keys), frame.get_column(HASH).to_numpy(), units)
        if len(groups.starts) == frame.height:
            return frame
        owned = frame[groups.order].with_columns(groups.ids().alias(_OWNER), pl.Series(_ARRIVAL, np.arange(frame.height)))
        return self._best(owned).select(frame.columns)

    def work(self, desk: Desk, arrived: Sequence[Partial]) -> Emitted | None:
        found = in_order(arrived)
        if found is None:
            return None
        frame, hashes = found
        groups = group_rows(frame.select(self.keys), hashes)
        keys = frame.select(self.keys)[groups.heads]
        new = frame[groups.order].with_columns(groups.ids().cast(pl.Int64).alias(_OWNER), pl.Series(_ARRIVAL, np.arange(frame.height)))
        desk.lap("fold")
        columns = [column for column in self.columns if column not in self.keys]
        which, stored = desk.find_rows(self.name, keys, groups.hashes, (RANK,), columns)
        rows = [new.select(_OWNER, _ARRIVAL, *self.columns, pl.lit(None, pl.Int64).alias(RANK))]
        if len(which):
            old = stored.with_columns(keys[which].get_columns()).with_columns(pl.Series(_OWNER, which.astype(np.int64)))
            # What is stored came before, and its order among equals is its rank's.
            ranks = pl.col(RANK) - (self.n + 1) if self.ties == "first" else -pl.col(RANK)
            rows.append(old.with_columns(ranks.alias(_ARRIVAL)).select(rows[0].columns))
        best = self._best(pl.concat(rows))
        place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(_OWNER)
        best = best.with_columns(place.alias("__place")).with_columns((pl.col("__place").ne_missing(pl.col(RANK))).alias(CHANGED))
        best = best.filter(pl.col(CHANGED).any().over(_OWNER)).with_columns(pl.col("__place").alias(RANK))
        if best.height == 0:
            return None
        best = best.with_columns(pl.Series(HASH, groups.hashes[best.get_column(_OWNER).to_numpy()]))
        desk.write(self.name, best.filter(CHANGED).select(HASH, *self.keys, RANK, *columns))
        return Emitted(best.select(self.schema.names()), best.get_column(HASH).to_numpy())

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The best rows of every owner, the best first. Nulls are worse than anything."""
        latest_first = self.ties == "last"
        ordered = rows.sort(
            _OWNER, *self.by, _ARRIVAL, descending=[False, *self.descending, latest_first], nulls_last=True, maintain_order=True
        )
        return ordered.filter(pl.int_range(pl.len()).over(_OWNER) < self.n)

    def reader(self) -> TopReader:
        return TopReader(self.keys, (*self.columns, RANK))


@dataclass(frozen=True)
class TopReader:
    """Shows the lists, rank by rank."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        (rows,) = tables.values()
        return rows.select(self.columns).sort(*self.keys, RANK)


def make_top(place: Place, op: Top) -> Best:
    return Best(**place.common(op.keys), n=op.n, by=op.by, descending=op.descending, ties=op.ties)
