"""The newest row of every key. State is that row, whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.plan.rowwise import Latest
from meander.state.grouping import group_rows
from meander.state.hashing import Hashes
from meander.state.segment import HASH
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Partial, Stateful
from meander.task.operators.place import Place
from meander.task.operators.replacing import replaced
from meander.task.operators.wholerows import in_order, send_whole
from meander.task.operators.workspace import Workspace
from meander.task.rows import UNIT, Rows

_OWNER = "__owner"


@dataclass(frozen=True)
class Newest(Stateful):
    """Emits a key's row when another has taken its place. Of equals, the later to arrive is the newer."""

    order: tuple[str, ...]
    retracts: bool = False
    """Whether a reader needs removals."""

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept(self.keys)}

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        """Only the newest row of a key and unit can be the newest of all."""
        frame = send_whole(rows, self.keys, intake)
        units = None if rows.units is None else frame.get_column(UNIT).to_numpy()
        return self._newest(frame, frame.get_column(HASH).to_numpy(), units)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        found = in_order(arrived)
        if found is None:
            return None
        frame, hashes = found
        frame = self._newest(frame, hashes).select(HASH, *self.schema)
        hashes = frame.get_column(HASH).to_numpy()
        workspace.lap("fold")
        gone = None
        if self.order or self.retracts:
            which, stored = workspace.find(self.name, frame.select(self.keys), hashes, self.schema.names() if self.retracts else self.order)
            newer = np.ones(frame.height, np.bool_)
            if len(which) and self.order:
                newer = ~self._older(frame, which, {name: stored[name] for name in self.order})
            if self.retracts:
                old = pl.DataFrame([*stored.values()]) if len(which) else self.schema.to_frame()
                replaces = newer[which]
                gone = old.filter(pl.Series(replaces)), np.cumsum(newer)[which[replaces]] - 1
            frame = frame.filter(pl.Series(newer))
        workspace.write(self.name, frame)
        after, hashes = frame.select(self.schema.names()), frame.get_column(HASH).to_numpy()
        return Emitted(after, hashes) if gone is None else replaced(*gone, after, np.arange(len(hashes)), hashes)

    def _older(self, frame: pl.DataFrame, which: np.ndarray, stored: Mapping[str, pl.Series]) -> np.ndarray:
        """A mask of the rows that are older than the stored row of their key."""
        of = pl.Series(_OWNER, which)
        before = pl.DataFrame([*stored.values()]).with_columns(of, pl.lit(False).alias("__new"))
        after = frame[which].select(self.order).with_columns(of, pl.lit(True).alias("__new"))
        both = pl.concat([before, after]).sort(_OWNER, *self.order, nulls_last=False, maintain_order=True)
        last = both.group_by(_OWNER, maintain_order=True).last()
        older = np.zeros(frame.height, np.bool_)
        older[last.filter(~pl.col("__new")).get_column(_OWNER).to_numpy()] = True
        return older

    def _newest(self, frame: pl.DataFrame, hashes: Hashes, units: np.ndarray | None = None) -> pl.DataFrame:
        """The newest row of every key (and unit), of rows in the order of arrival within each."""
        if frame.height == 0:
            return frame
        groups = group_rows(frame.select(self.keys), hashes, units)
        ordered = frame[groups.order]
        if self.order:
            ordered = ordered.with_columns(groups.ids()).sort("__group", *self.order, nulls_last=False, maintain_order=True)
        ends = np.append(groups.starts[1:], groups.rows) - 1
        return ordered[ends].select(frame.columns)

    def reader(self) -> RowReader:
        return RowReader(tuple(self.schema))


@stored("latest_state")
@dataclass(frozen=True)
class RowReader:
    """Shows rows as they are."""

    columns: tuple[str, ...]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        return pl.concat([rows.select(self.columns) for rows in tables.values()])


def make_latest(place: Place, op: Latest) -> Newest:
    return Newest(**place.common(op.keys), order=op.order, retracts=place.retracts)
