"""Aggregates per key and window of so many rows, in the order of arrival.

A key's rows are numbered as they arrive, and cut into *panes* of one step's rows. A window is the size's worth of panes that follow each
other; it comes in the epoch that brings its last row. A key keeps its newest panes, as many as a window has, each in a slot of its own:
a new one takes the place of the oldest, so nothing is deleted. How many rows a key has had follows from its newest pane.

Rows are numbered behind the exchange, where all of a key are: by unit, and by position within it.
Before it the pane of a row is not known, so rows go through as they are, with the needed columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.aggregates import Agg, Part
from meander.plan.computed import with_computed
from meander.plan.counts import BESIDE, NUMBER, PANE, ROWS, SLOT, CountAggregate, CountWindow
from meander.state.grouping import Groups, fold_rows, fold_states, group_rows
from meander.state.hashing import Hashes, hash_keys, spread_within_groups
from meander.state.segment import HASH
from meander.state.table import Kept, conform, fill_empty
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Partial, Stateful
from meander.task.operators.folding import take
from meander.task.operators.place import Place, parts_of
from meander.task.operators.wholerows import in_order, send_whole
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows

_OWNER = "__owner"
_AT_ONCE = 262_144
"""About how many panes are folded to windows at once: those of one epoch's windows may be many times its rows."""
_LOOK = 8
"""How many slots of a key are looked at first."""
Numbers = npt.NDArray[np.int64]


@stored("count_window_state", called={"aggs": "aggregates"})
@dataclass(frozen=True)
class CountReader:
    """Shows windows, finished; to a reader of the state those that have rows and are not full."""

    keys: tuple[str, ...]
    aggs: tuple[Agg, ...]
    window: CountWindow
    types: Mapping[str, pl.DataType]
    """The columns of a stored pane, which may be of an older plan."""
    schema: pl.Schema
    """Of the rows that come in."""

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        panes = pl.concat([conform(rows, self.types) for rows in tables.values()])
        parts = parts_of(self.aggs, self.schema)
        panes = panes.with_columns([fill_empty(panes.get_column(name), part) for name, part in parts.items()]).sort(PANE)
        groups = group_rows(panes.select(self.keys), hash_keys(panes.select(self.keys)) if self.keys else np.zeros(panes.height, np.uint64))
        panes, owners = panes[groups.order], groups.ids().to_numpy()
        # A window that is not full has all panes of its key from its first one on.
        states = _from_each_on(panes.select(*parts), owners, parts)
        count = (pl.col(PANE) * self.window.step + pl.col(ROWS)).max().over(pl.Series("__owner", owners))
        rows = pl.DataFrame([*panes.select(self.keys), panes.get_column(PANE).alias(NUMBER), *states])
        full = panes.select(pl.col(PANE) * self.window.step + self.window.size <= count).to_series()
        return self.finish(rows.filter(~full)).sort(*self.keys, NUMBER)

    def finish(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The output rows of windows, from their states and their numbers from 0."""
        counted = [pl.col(f"{agg.name}.values").list.len().cast(pl.Int64).alias(f"{agg.name}.n") for agg in self.aggs if agg.keeps == "set"]
        shown = (pl.col(NUMBER) + 1, *(agg.finish() for agg in self.aggs))
        return rows.with_columns(counted).select(*(pl.col(key) for key in self.keys), *shown)


def _from_each_on(states: pl.DataFrame, owners: Numbers, parts: Mapping[str, Part]) -> pl.DataFrame:
    """Of rows that stand by owner, each folded with all that follow of its owner: twice as many at every step."""
    reach, rows = 1, np.arange(states.height)
    while (further := np.flatnonzero(owners[:-reach] == owners[reach:])).size:
        some = np.ones(states.height, np.int64)
        some[further] = 2
        starts = np.cumsum(some) - some
        which = np.repeat(rows, some)
        which[starts[further] + 1] += reach
        groups = Groups(np.arange(len(which)), starts, np.zeros(len(starts), np.uint64), len(which))
        states, reach = pl.DataFrame(list(fold_states(states[which], groups, parts).values())), 2 * reach
    return states


@dataclass(frozen=True)
class CountAggregation(Stateful):
    """Emits windows when they are full."""

    parts: Mapping[str, Part]
    aggs: tuple[Agg, ...]
    window: CountWindow
    columns: pl.Schema
    """Of the rows that come in."""
    needed: tuple[str, ...]
    """Those of them that go on."""
    types: Mapping[str, pl.DataType]
    """The columns of a stored pane."""

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept((*self.keys, SLOT))}

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        return send_whole(rows.with_frame(rows.frame.select(self.needed)), self.keys, intake)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        found = in_order(arrived)
        if found is None:
            return None
        groups = group_rows(found[0].select(self.keys), found[1])
        frame, owners = found[0][groups.order], groups.ids().to_numpy().astype(np.int64)
        keys = pl.DataFrame(take(frame.select(self.keys), groups.starts))
        workspace.lap("fold")
        stored = self._stored(workspace, keys, groups.hashes)
        workspace.lap("state read")
        before = np.zeros(len(groups.starts), np.int64)
        if stored.height:
            counts = stored.get_column(PANE).to_numpy() * self.window.step + stored.get_column(ROWS).to_numpy()
            np.maximum.at(before, stored.get_column(_OWNER).to_numpy(), counts)
        after = before + np.diff(np.append(groups.starts, groups.rows))
        numbers = before[owners] + (np.arange(groups.rows) - groups.starts[owners])
        panes = self._merged(stored, self._fold(frame, owners, numbers // self.window.step))
        self._write(workspace, panes, keys, groups.hashes, before, after)
        return self._full(panes, keys, groups.hashes, before, after)

    def _stored(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes) -> pl.DataFrame:
        """The panes of these keys: the numbers of the keys, and the panes' columns.

        Places fill up one after the other, so a key with a pane in one place has a pane in all
        places before it: a look at some places shows whether there are more. The cost follows the
        stored panes, not the number of panes per window.
        """
        owners, first, found = np.arange(len(hashes)), 0, []
        while len(owners) and first < self.window.panes:
            slots = np.arange(first, min(max(_LOOK, 2 * first), self.window.panes))
            found.append(self._stored_in(workspace, keys, hashes, owners, slots))
            last = found[-1].filter(pl.col(SLOT) == slots[-1]) if found[-1].height else found[-1]
            owners, first = np.sort(last.get_column(_OWNER).to_numpy()), int(slots[-1]) + 1
        some = [panes.drop(SLOT) for panes in found if panes.height]
        return pl.concat(some) if some else pl.DataFrame()

    def _stored_in(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes, whose: Numbers, which_slots: Numbers) -> pl.DataFrame:
        """The panes that these of the keys have in these slots."""
        owners, slots = np.repeat(whose, len(which_slots)), np.tile(which_slots, len(whose))
        wanted = pl.DataFrame([*take(keys, owners), pl.Series(SLOT, slots)])
        finer = self._hashes(wanted, hashes[owners])
        order = np.argsort(finer, kind="stable")
        columns = {name: dtype for name, dtype in self.types.items() if name not in (*self.keys, SLOT)}
        which, found = workspace.find(self.name, wanted[order], finer[order], columns)
        rows = [pl.Series(_OWNER, owners[order][which], dtype=pl.Int64), pl.Series(SLOT, slots[order][which], dtype=pl.Int64)]
        if len(which) == 0:
            return pl.DataFrame(rows)
        rows += [fill_empty(series, self.parts[name]) if name in self.parts else series for name, series in found.items()]
        return pl.DataFrame(rows)

    def _fold(self, frame: pl.DataFrame, owners: Numbers, panes: Numbers) -> pl.DataFrame:
        """The arrived rows, folded to one row per key and pane."""
        begins = np.append(True, (owners[1:] != owners[:-1]) | (panes[1:] != panes[:-1]))
        starts = np.flatnonzero(begins)
        pieces = Groups(np.arange(len(owners)), starts, np.zeros(len(starts), np.uint64), len(owners))
        states = fold_rows(frame, pieces, self.parts)
        rows = np.diff(np.append(starts, len(owners)))
        return pl.DataFrame(
            [pl.Series(_OWNER, owners[starts]), pl.Series(PANE, panes[starts]), pl.Series(ROWS, rows, dtype=pl.Int64), *states.values()]
        )

    def _merged(self, stored: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
        """All arrived and stored panes, by key and number. A pane that is stored and goes on is
        folded in this order."""
        if stored.height == 0:
            return new
        both = pl.concat([stored.select(new.columns), new]).sort(_OWNER, PANE, maintain_order=True)
        owners, panes = both.get_column(_OWNER).to_numpy(), both.get_column(PANE).to_numpy()
        starts = np.flatnonzero(np.append(True, (owners[1:] != owners[:-1]) | (panes[1:] != panes[:-1])))
        states = fold_states(both, Groups(np.arange(both.height), starts, np.zeros(len(starts), np.uint64), both.height), self.parts)
        rows = np.add.reduceat(both.get_column(ROWS).to_numpy(), starts)
        return pl.DataFrame(
            [pl.Series(_OWNER, owners[starts]), pl.Series(PANE, panes[starts]), pl.Series(ROWS, rows, dtype=pl.Int64), *states.values()]
        )

    def _write(
        self, workspace: Workspace, panes: pl.DataFrame, keys: pl.DataFrame, hashes: Hashes, before: Numbers, after: Numbers
    ) -> None:
        """The panes that have got rows and are among a key's newest."""
        owners, numbers = panes.get_column(_OWNER).to_numpy(), panes.get_column(PANE).to_numpy()
        step, most = self.window.step, self.window.panes
        kept = np.flatnonzero((numbers >= before[owners] // step) & (numbers > (after[owners] - 1) // step - most))
        owners = owners[kept]
        slots, content = pl.Series(SLOT, numbers[kept] % most), panes.select(PANE, ROWS, *self.parts)[kept]
        rows = pl.DataFrame([*take(keys, owners), slots, *content.get_columns()])
        rows = rows.select(pl.Series(HASH, self._hashes(rows, hashes[owners])), pl.all())
        workspace.write(self.name, rows.sort(HASH, maintain_order=True))

    def _full(self, panes: pl.DataFrame, keys: pl.DataFrame, hashes: Hashes, before: Numbers, after: Numbers) -> Emitted | None:
        """The windows whose last row has come, by key and number."""
        size, step, most = self.window.size, self.window.step, self.window.panes
        first = np.maximum(0, (before - size) // step + 1)
        many = np.maximum(0, (after - size) // step + 1 - first)
        if not many.any():
            return None
        owners = np.repeat(np.arange(len(many)), many)
        windows = first[owners] + np.arange(len(owners)) - np.repeat(np.cumsum(many) - many, many)
        # A key's panes follow each other without a gap.
        heads = np.searchsorted(panes.get_column(_OWNER).to_numpy(), np.arange(len(many)))
        begins = heads[owners] + windows - panes.get_column(PANE).to_numpy()[heads[owners]]
        made = []
        for at in range(0, len(owners), max(1, _AT_ONCE // most)):
            mine = slice(at, at + max(1, _AT_ONCE // most))
            made.append(self._windows(panes, begins[mine]))
        states = pl.concat(made)
        rows = pl.DataFrame([*take(keys, owners), pl.Series(NUMBER, windows, dtype=pl.Int64), *states.get_columns()])
        return Emitted(self.reader().finish(rows), hashes[owners])

    def _windows(self, panes: pl.DataFrame, begins: Numbers) -> pl.DataFrame:
        """The states of windows, of which the first pane is said."""
        most = self.window.panes
        if most == 1:
            return panes.select(*self.parts)[begins]
        which = (begins[:, None] + np.arange(most)).ravel()
        starts = np.arange(0, len(which), most)
        groups = Groups(np.arange(len(which)), starts, np.zeros(len(starts), np.uint64), len(which))
        return pl.DataFrame(list(fold_states(panes.select(*self.parts)[which], groups, self.parts).values()))

    def _hashes(self, panes: pl.DataFrame, hashes: Hashes) -> Hashes:
        """A key's panes stay in the key's group."""
        return spread_within_groups(hashes, hash_keys(panes.select(*self.keys, SLOT)))

    def reader(self) -> CountReader:
        return CountReader(self.keys, self.aggs, self.window, self.types, with_computed(self.columns, self.aggs))


def make_counts(place: Place, op: CountAggregate) -> CountAggregation:
    parts = parts_of(op.aggs, place.schema())
    keys = {key: place.schema()[key] for key in op.keys}
    return CountAggregation(
        **place.common(op.keys),
        parts=parts,
        aggs=op.aggs,
        window=op.window,
        columns=place.schema(),
        needed=op.needs(list(with_computed(place.schema(), op.aggs))),
        types={**keys, **BESIDE, **{name: part.dtype for name, part in parts.items()}},
    )
