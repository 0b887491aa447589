"""Semi and anti joins of two streams: rows of the left that have a partner on the right, or have none.

Both keep the same: the rows of the left that have found no partner yet, and the rows of the right.
A semi join emits a row when its first partner is there, an anti join when it is over without one. A
row that has found its partner is deleted, or never stored.

A condition is evaluated for a row's partners in the order of their arrival, up to the first for
which it holds. So the pairs on which it fails do not depend on the epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.plan.joins import Join
from meander.plan.windows import Times
from meander.state.grouping import Index
from meander.state.hashing import Hashes
from meander.state.segment import DELETED, HASH, SOONEST
from meander.state.table import Kept
from meander.task.operators.contract import Emitted, Mask, Partial
from meander.task.operators.joins.conditions import holds, refuse
from meander.task.operators.joins.pairing import Keys, Numbers, distinct, have_partner, pair_up, stretches
from meander.task.operators.joins.pairs import ARRIVAL, AT, Arrived, Found, Joining, Spans, common_fields
from meander.task.operators.place import Place
from meander.task.operators.workspace import Workspace


@dataclass(frozen=True)
class Known:
    """Rows of a side, in the order of arrival, with the numbers of their keys."""

    keys: Numbers
    times: Times
    arrival: Numbers
    frame: pl.DataFrame
    """The columns that a condition, or the output, needs of them."""
    within: tuple[Times, Times] | None = None
    """The time of a row's partners less its own, at least and at most, where that is not the same for all."""
    spans: Spans | None = None
    """The window that each stands for, where a row is in several."""

    @property
    def ends(self) -> Times:
        assert self.spans is not None
        return self.spans[1]

    def take(self, rows: Index) -> Known:
        within, spans = ((pair[0][rows], pair[1][rows]) if pair is not None else None for pair in (self.within, self.spans))
        return Known(self.keys[rows], self.times[rows], self.arrival[rows], self.frame[rows], within, spans)


@dataclass(frozen=True)
class Filtering(Joining):
    """Emits a row of the left once, when its first partner is there, or when none can come any more."""

    left: pl.Schema

    def tables(self) -> dict[str, Kept]:
        return {side.table: Kept(side.identity, AT if side.ends else None) for side in self.sides}

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        out = Found()
        if arrived:
            self._meet(workspace, (self._arrived(workspace, arrived, 0), self._arrived(workspace, arrived, 1)), out)
        if self._is_anti:
            self._let_go(workspace, 0, out)
        if workspace.flushes and self.follows is not None:
            self._close(workspace)
        return out.emit(self.schema.names())

    @property
    def _is_anti(self) -> bool:
        return self.op.how == "anti"

    @property
    def _keeps_first(self) -> bool:
        """Whether of the right's rows of a key one tells as much as all."""
        return self.op.where is None and not self.sides[1].ends

    # -- what arrives ---------------------------------------------------------------------------------------------

    def _meet(self, workspace: Workspace, new: tuple[Arrived, Arrived], out: Found) -> None:
        """New rows of the left with stored and with new ones of the right, then stored ones of the left with new ones of the right."""
        left, right = new
        workspace.lap("fold")
        keys = self._number(left, right)
        came = Known(keys.of[1], right.times, right.arrival, right.frame)
        writes = []
        if left.frame.height:
            fresh = Known(keys.of[0], left.times, left.arrival, left.frame)
            self._match(workspace, fresh, self._stored(workspace, 1, left, keys), left.met)
            self._match(workspace, fresh, came, left.met)
            if not self._is_anti:
                self._give(left.frame, left.hashes, left.arrival, left.met, out)
            if not left.met.all():
                writes.append(self._rows(0, left, ~left.met))
        if right.frame.height:
            old = self._stored(workspace, 0, right, keys)
            met = np.zeros(len(old.keys), np.bool_)
            self._match(workspace, old, came, met)
            if met.any():
                hashes = keys.hashes[old.keys]
                if not self._is_anti:
                    self._give(old.frame, hashes, old.arrival, met, out)
                writes.append(self._gone(keys, old, met))
            wanted = self._unknown(workspace, right, keys) if self._keeps_first else np.ones(len(right.hashes), np.bool_)
            if wanted.any():
                workspace.write(self.sides[1].table, self._rows(1, right, wanted))
        if len(writes) == 2:
            writes = [pl.concat([writes[0].with_columns(pl.lit(False).alias(DELETED)), writes[1]], how="diagonal").sort(HASH, ARRIVAL)]
        if writes:
            workspace.write(self.sides[0].table, writes[0])

    def _stored(self, workspace: Workspace, number: int, new: Arrived, keys: Keys) -> Known:
        """The stored rows of a side that new ones of the other can meet."""
        side, mine = self.sides[number], self.sides[1 - number]
        wanted_columns = self._asked_for(number)
        columns = [ARRIVAL, *([AT] if side.ends else []), *wanted_columns]
        known = np.flatnonzero(keys.of[1 - number] >= 0)
        nothing = np.zeros(0, np.int64)
        if len(known) == 0:
            return Known(nothing, nothing, nothing, pl.DataFrame())
        of, times = keys.of[1 - number][known], new.times[known]
        wanted, first, last = stretches(of, times, mine.low, mine.high) if side.ends else (distinct(of, len(keys.hashes)), None, None)
        probes = keys.frame[wanted].rename(dict(zip(keys.frame.columns, side.keys, strict=True)))
        if number == 0:  # rows that have found a partner are deleted
            whose, frame = workspace.find_rows(side.table, probes, keys.hashes[wanted], (ARRIVAL,), columns, first, last)
        else:
            whose, found = workspace.find_all(side.table, probes, keys.hashes[wanted], columns, first, last)
            frame = pl.DataFrame([found[name] for name in columns]) if len(whose) else pl.DataFrame()
        workspace.lap("state read")
        if len(whose) == 0:
            return Known(nothing, nothing, nothing, pl.DataFrame())
        ends = frame.get_column(AT).to_numpy() if side.ends else np.zeros(frame.height, np.int64)
        return Known(wanted[whose].astype(np.int64), ends, frame.get_column(ARRIVAL).to_numpy(), frame.select(wanted_columns))

    def _asked_for(self, number: int) -> list[str]:
        """The columns that are needed of a side's stored rows."""
        return [*self.sides[number].columns] if self.op.where is not None or (number == 0 and not self._is_anti) else []

    def _match(self, workspace: Workspace, left: Known, right: Known, met: Mask) -> None:
        """Note which rows of the left meet one of these rows of the right; those that have met one already are not asked for."""
        open_ = np.flatnonzero(~met)
        if len(open_) == 0 or len(right.keys) == 0:
            return
        mine = left.keys[open_], left.times[open_]
        low, high = (self.sides[0].low, self.sides[0].high) if left.within is None else (bound[open_] for bound in left.within)
        if self.op.where is None:
            met[open_] = have_partner(*mine, right.keys, right.times, low, high)
            return
        first, other = pair_up(*mine, right.keys, right.times, low, high)
        if len(first) == 0:
            return
        asked = open_[first]
        spans = None if left.spans is None else (left.spans[0][asked], left.spans[1][asked])
        whole = self._whole(left.frame[asked], right.frame[other], spans)
        meets, failures = holds(self.op.where, whole)
        arrival = right.arrival[other]
        soonest = np.full(len(open_), np.iinfo(np.int64).max)
        np.minimum.at(soonest, first[meets], arrival[meets])
        for failure in failures:
            row, _ = failure
            if arrival[row] < soonest[first[row]]:  # it would not have been asked of a later one
                refuse(workspace, self, self.op.where, whole, failure)
        met[open_[first[meets]]] = True

    def _unknown(self, workspace: Workspace, right: Arrived, keys: Keys) -> Mask:
        """The first rows of keys of which none is stored."""
        of = keys.of[1]
        unknown = np.zeros(len(of), np.bool_)
        known = np.flatnonzero(of >= 0)
        numbers, firsts = np.unique(of[known], return_index=True)
        probes = keys.frame[numbers].rename(dict(zip(keys.frame.columns, self.sides[1].keys, strict=True)))
        stored, _ = workspace.find_all(self.sides[1].table, probes, keys.hashes[numbers], [ARRIVAL])
        unknown[np.delete(known[firsts], stored)] = True
        return unknown

    # -- what is stored, and what comes out -----------------------------------------------------------------------

    def _rows(self, number: int, rows: Arrived, wanted: Mask) -> pl.DataFrame:
        columns = [pl.Series(HASH, rows.hashes), *rows.frame.get_columns(), pl.Series(ARRIVAL, rows.arrival)]
        if self.sides[number].ends:
            columns.append(pl.Series(AT, rows.times))
        return pl.DataFrame(columns).filter(pl.Series(wanted))

    def _gone(self, keys: Keys, old: Known, met: Mask) -> pl.DataFrame:
        """Deletions of stored rows of the left."""
        side, at = self.sides[0], np.flatnonzero(met)
        numbers = old.keys[at]
        columns = [pl.Series(HASH, keys.hashes[numbers]), *keys.frame[numbers].select(side.keys).get_columns()]
        columns += [pl.Series(ARRIVAL, old.arrival[at]), *([pl.Series(AT, old.times[at])] if side.ends else [])]
        rest = [pl.lit(None, dtype).alias(name) for name, dtype in self.left.items() if name not in side.keys]
        frame = pl.DataFrame(columns).with_columns(*rest, pl.lit(True).alias(DELETED))
        return frame.sort(HASH, ARRIVAL)

    def _give(self, rows: pl.DataFrame, hashes: Hashes, arrival: Numbers, wanted: Mask, out: Found, spans: Spans | None = None) -> None:
        """Emit rows of the left."""
        alone = rows.filter(pl.Series(wanted))
        if alone.height:
            lasting = None if spans is None else (spans[0][wanted], spans[1][wanted])
            whole = self._timed(alone, alone, None, lasting).select(self.schema.names())
            out.add(whole, hashes[wanted], arrival[wanted], np.full(alone.height, -1, np.int64))

    def _let_go(self, workspace: Workspace, number: int, out: Found) -> None:
        """Rows of the left that are over: all that is stored has found no partner."""
        side = self.sides[number]
        rows = workspace.ending(side.table, SOONEST, side.over(workspace.evict))
        if rows.height:
            everything = np.ones(rows.height, np.bool_)
            hashes, arrival = rows.get_column(HASH).to_numpy(), rows.get_column(ARRIVAL).to_numpy()
            self._give(rows.select(side.columns), hashes, arrival, everything, out)


def make_filtering(place: Place, op: Join) -> Filtering:
    return Filtering(**common_fields(place, op), left=place.schema(0))
