"""The first row of every key. State is the keys: for good, or, with a time to live, until the time at which they are forgotten.

With a time to live a kept row *guards* its key until its own time plus that: a row with a smaller
time is a duplicate, any other row is kept and becomes the guard. A guard is needed as long as a row
in time can meet it: until the mark has passed its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.coordinate.timing import Timing
from meander.plan.rowwise import Deduplicate
from meander.plan.windows import NEVER, Times
from meander.state.grouping import Groups, group_rows
from meander.state.hashing import Hashes
from meander.state.segment import HASH
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Mask, Partial, Stateful
from meander.task.operators.place import Place
from meander.task.operators.wholerows import in_order, send_whole
from meander.task.operators.workspace import Workspace
from meander.task.rows import UNIT, Rows

UNTIL = "__until"


@dataclass(frozen=True)
class Firsts(Stateful):
    """Without a time to live: a key that was ever seen is known."""

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept(self.keys)}

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        """Only the first row of a key and unit can be the first of all."""
        frame = send_whole(rows, self.keys, intake)
        units = None if rows.units is None else frame.get_column(UNIT).to_numpy()
        return frame[group_rows(frame.select(self.keys), frame.get_column(HASH).to_numpy(), units).heads]

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        found = in_order(arrived)
        if found is None:
            return None
        frame, hashes = found
        groups = group_rows(frame.select(self.keys), hashes)
        frame, hashes = frame[groups.heads], groups.hashes
        workspace.lap("fold")
        known, _ = workspace.find(self.name, frame.select(self.keys), hashes, ())
        new = np.ones(len(hashes), np.bool_)
        new[known] = False
        frame, hashes = frame.filter(pl.Series(new)), hashes[new]
        workspace.write(self.name, frame.select(HASH, *self.keys))
        return Emitted(frame.select(self.schema.names()), hashes)

    def reader(self) -> GuardReader:
        return GuardReader(self.keys)


@dataclass(frozen=True)
class Guards(Stateful):
    """With a time to live."""

    ttl: int
    time: str
    shift: int
    follows: Timing

    @property
    def timing(self) -> Timing:
        return self.follows

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept(self.keys, UNTIL)}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        """Whether a row behind the mark is a duplicate may be forgotten."""
        behind: Mask = self._times(frame) < late
        return behind

    def why_late(self) -> str:
        return f"late: its {self.time} is behind the watermark"

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        return send_whole(rows, self.keys, intake)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        found = in_order(arrived)
        if found is None:
            return None
        frame, hashes = found
        groups = group_rows(frame.select(self.keys), hashes)
        keys, times = frame.select(self.keys)[groups.heads], self._times(frame)
        workspace.lap("fold")
        guards = self._stored(workspace, keys, groups.hashes, np.minimum.reduceat(times[groups.order], groups.starts))
        kept = self._keep(times[groups.order], groups, guards)
        if len(kept) == 0:
            return None
        rows = frame[groups.order[kept]]
        changed = np.unique(groups.ids().to_numpy()[kept])
        self._write(workspace, keys[changed], groups.hashes[changed], guards[changed])
        return Emitted(rows.select(self.schema.names()), rows.get_column(HASH).to_numpy())

    def _stored(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes, first: Times) -> Times:
        """Until when each key is guarded. A guard only moves on, so one that ends before the key's first row has nothing behind it."""
        guards = np.full(len(hashes), NEVER, np.int64)
        which, stored = workspace.find(self.name, keys, hashes, (UNTIL,), first)
        if len(which):
            np.maximum.at(guards, which, stored[UNTIL].to_numpy())
        return guards

    def _keep(self, times: Times, groups: Groups, guards: Times) -> np.ndarray:
        """The rows to keep, in order, for rows by key and arrival. Moves the guards on. One round for every row that a key keeps."""
        kept: list[np.ndarray] = []
        of = groups.ids().to_numpy().astype(np.intp)
        left = np.flatnonzero(times >= guards[of])
        while len(left):
            owners = of[left]
            first = np.append(True, owners[1:] != owners[:-1])
            taken = left[first]
            kept.append(taken)
            guards[of[taken]] = times[taken] + self.ttl
            left = left[~first]
            left = left[times[left] >= guards[of[left]]]
        return np.sort(np.concatenate(kept)) if kept else np.zeros(0, np.intp)

    def _write(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes, until: Times) -> None:
        workspace.write(self.name, pl.DataFrame([pl.Series(HASH, hashes), *keys.get_columns(), pl.Series(UNTIL, until)]))

    def _times(self, frame: pl.DataFrame) -> Times:
        found: Times = frame.get_column(self.time).dt.epoch("us").to_numpy()
        return found + self.shift

    def over(self, table: str, evict: int) -> int:
        return evict

    def reader(self) -> GuardReader:
        return GuardReader(self.keys)


@stored("deduplicate_state")
@dataclass(frozen=True)
class GuardReader:
    """Shows the keys that are known and, where they are forgotten some time, when: at ``until``."""

    keys: tuple[str, ...]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        rows = pl.concat(list(tables.values()))
        if UNTIL not in rows.columns:
            return rows.select(self.keys)
        newest = rows.sort(UNTIL).unique(self.keys, keep="last", maintain_order=True)
        return newest.select(*self.keys, pl.col(UNTIL).cast(pl.Datetime("us")).alias("until"))


def make_deduplicate(place: Place, op: Deduplicate) -> Stateful:
    if op.ttl is None:
        return Firsts(**place.common(op.keys))
    time = place.time()
    assert time is not None
    assert op.time is not None
    # The end of the input closes nothing here: a row that comes after it can still be a duplicate.
    follows = Timing(time.marks, time.delay, flushes=False)
    return Guards(**place.common(op.keys), ttl=op.ttl, time=op.time, shift=op.shift, follows=follows)
