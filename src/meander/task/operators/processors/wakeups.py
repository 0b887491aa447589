"""When to look at a key again: wake-ups, by the time at which they are due.

A *wake-up* is a row (key, at). It only says that the key's own row should be looked at: that row
has the timer or the expiry. So a wake-up that is not needed any more does no harm, and need not be
found and removed.

Tables of a processor ``p``, whose rows are over when their time is reached:

- ``p.event``: by event time
- ``p.clock``: by the decisions' clock
- ``p.later``: by event time, and set while everything was flushed: another flush does not wake these
- ``p.soon``: for the next epoch, whatever the time is then; ``at`` is that epoch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.coordinate.timing import Clock
from meander.plan.windows import FOREVER, Times
from meander.state.segment import HASH, SOONEST
from meander.state.table import Kept
from meander.task.operators.workspace import Workspace

AT = "__at"
_SECOND = 1_000_000
_EVENT, _CLOCK, _LATER, _SOON = "event", "clock", "later", "soon"


@dataclass(frozen=True)
class WakeUps:
    """The wake-ups of one operator."""

    operator: str
    types: Mapping[str, pl.DataType]
    """Of the key's columns: a wake-up that an older version of the plan wrote may have narrower ones."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.types)

    def tables(self) -> dict[str, Kept]:
        return {f"{self.operator}.{kind}": Kept((*self.keys, AT), AT) for kind in (_EVENT, _CLOCK, _LATER, _SOON)}

    def clock_of(self, table: str) -> Clock:
        kind = self._kind(table)
        return "clock" if kind == _CLOCK else "epoch" if kind == _SOON else "mark"

    def over(self, table: str, evict: int) -> int | None:
        kind = self._kind(table)
        return None if kind == "" or (kind == _LATER and evict == FOREVER) else evict

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        """By the clock, an epoch without input comes at most once in a second."""
        if self._kind(table) == _CLOCK and late // _SECOND == evict // _SECOND:
            return None
        upto = self.over(table, evict)
        return None if upto is None else (SOONEST, upto)

    def woken(self, workspace: Workspace) -> list[pl.DataFrame]:
        """The keys to look at now."""
        found = []
        for table in self.tables():
            clock = self.clock_of(table)
            upto = self.over(table, workspace.now if clock == "clock" else workspace.epoch if clock == "epoch" else workspace.evict)
            if upto is None:
                continue
            workspace.next_ends[table] = workspace.next_end(table, upto)
            if workspace.quiet.get(table, SOONEST) <= upto:
                rows = workspace.ending(table, SOONEST, upto, {**self.types, AT: pl.Int64()})
                if rows.height:
                    found.append(rows.select(HASH, *self.keys))
        return found

    def write(self, workspace: Workspace, wakeups: Sequence[tuple[bool, pl.DataFrame]]) -> None:
        """Wake-ups (by the clock or not; hash, keys and ``at``) to their tables."""
        found: dict[str, list[pl.DataFrame]] = {}
        for clock, rows in wakeups:
            flush = not clock and workspace.evict == FOREVER
            base = workspace.now if clock else workspace.late if flush else workspace.evict
            kind = _CLOCK if clock else _LATER if flush else _EVENT
            ats: Times = rows.get_column(AT).to_numpy()
            at_once = ats <= base
            whole = rows.select(HASH, *self.keys, AT)
            if at_once.any():
                next_epoch = whole.filter(pl.Series(at_once)).with_columns(pl.lit(workspace.epoch + 1, pl.Int64).alias(AT))
                found.setdefault(_SOON, []).append(next_epoch)
            if not at_once.all():
                found.setdefault(kind, []).append(whole.filter(pl.Series(np.logical_not(at_once))))
        for kind, frames in found.items():
            rows = pl.concat(frames).unique(maintain_order=True).sort(HASH, maintain_order=True)
            workspace.write(f"{self.operator}.{kind}", rows)

    def _kind(self, table: str) -> str:
        """``event``, ``clock``, ``later`` or ``soon``; empty for a table that has no wake-ups."""
        kind = table.removeprefix(f"{self.operator}.")
        return kind if kind in (_EVENT, _CLOCK, _LATER, _SOON) else ""
