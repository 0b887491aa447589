"""When to look at a key again: a wheel of buckets of time, finer the nearer they are.

A *wake-up* is a row (key, at). It only says that the key's own row should be looked at: what is still to be done, a timer or an expiry,
stands there. So a wake-up that is not needed any more is no harm, and nobody has to find it to remove it.

A wake-up that is far away is in a bucket that is long: a second for what is less than 32 seconds away, 32 seconds up to 1,024 seconds, and
so on. When time reaches a long bucket, what is in it goes to shorter ones, and the bucket goes as files: a wake-up moves a few times at
most, few buckets are alive at a time, and nothing is read before its time is near.

Tables of a processor ``p``, each in buckets:

- ``p.event-0`` to ``p.event-5``: by event time
- ``p.clock-0`` to ``p.clock-5``: by the decisions' clock
- ``p.later-0`` to ``p.later-5``: by event time, and set while everything was flushed: another flush does not wake these
- ``p.soon``: for the next epoch, whatever the time is then; the bucket is that epoch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.engine.operators.desk import Desk
from meander.plan.windows import FOREVER, NEVER, Times
from meander.state.manifest import bucket_of, bucket_table, whole_table
from meander.state.segment import HASH

AT = "__at"
_STEP, _FACTOR, _LEVELS = 1_000_000, 32, 6
_LENGTHS = np.array([_STEP * _FACTOR**level for level in range(_LEVELS)], np.int64)
_EVENT, _CLOCK, _LATER, _SOON = "event", "clock", "later", "soon"


@dataclass(frozen=True)
class Wheel:
    """The wake-ups of one operator."""

    operator: str
    types: Mapping[str, pl.DataType]
    """Of the key's columns: a wake-up that an older version of the plan wrote may have narrower ones."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.types)

    def tables(self) -> dict[str, tuple[str, ...]]:
        kinds = [f"{kind}-{level}" for kind in (_EVENT, _CLOCK, _LATER) for level in range(_LEVELS)]
        return {f"{self.operator}.{kind}": (*self.keys, AT) for kind in (*kinds, _SOON)}

    def goes_by_clock(self, table: str) -> bool:
        return self._kind(table)[0] == _CLOCK

    def is_over(self, table: str, evict: int) -> bool:
        kind, level, bucket = self._kind(table)
        if kind == _SOON:
            return True
        if kind == "" or (kind == _LATER and evict == FOREVER):
            return False
        length = int(_LENGTHS[level])
        return bucket * length <= evict if level else (bucket + 1) * length <= evict

    def is_due(self, table: str, late: int, evict: int) -> bool:
        kind, level, bucket = self._kind(table)
        if kind == _SOON:
            return True
        if kind == "" or (kind == _LATER and evict == FOREVER):
            return False
        length = int(_LENGTHS[level])
        return evict > late and bucket * length <= evict and (bucket + 1) * length > late + 1

    def due(self, desk: Desk) -> tuple[list[pl.DataFrame], list[tuple[bool, pl.DataFrame]]]:
        """Who is to be looked at now, and which wake-ups move to shorter buckets (and whether they are by the clock)."""
        woken: list[pl.DataFrame] = []
        moved: list[tuple[bool, pl.DataFrame]] = []
        for table in desk.tables():
            kind, _, _ = self._kind(table)
            if kind == "":
                continue
            clock = kind == _CLOCK
            late, evict = (NEVER, desk.now) if clock else (desk.late, desk.evict)
            over = self.is_over(table, evict)
            if not over and not self.is_due(table, late, evict):
                continue
            rows = desk.scan(table, (*self.keys, AT), {**self.types, AT: pl.Int64()})
            if kind != _SOON:
                if over:
                    moved.append((clock, rows.filter(pl.col(AT) > evict)))
                rows = rows.filter((pl.col(AT) <= evict) & (over | (pl.col(AT) > late)))
            woken.append(rows.select(HASH, *self.keys))
        return [rows for rows in woken if rows.height], [(clock, rows) for clock, rows in moved if rows.height]

    def write(self, desk: Desk, wakeups: Sequence[tuple[bool, pl.DataFrame]]) -> None:
        """Wake-ups (by the clock or not; hash, keys and ``at``) to their buckets."""
        found: dict[str, list[pl.DataFrame]] = {}
        for clock, rows in wakeups:
            flush = not clock and desk.evict == FOREVER
            base = desk.now if clock else desk.late if flush else desk.evict
            kind = _CLOCK if clock else _LATER if flush else _EVENT
            ats: Times = rows.get_column(AT).to_numpy()
            # Before there is a mark, everything is far away from it.
            levels = np.minimum(np.searchsorted(_LENGTHS * _FACTOR, ats - max(base, NEVER // 2), side="right"), _LEVELS - 1)
            levels[ats <= base] = -1
            buckets = ats // _LENGTHS[np.maximum(levels, 0)]
            for level in np.unique(levels).tolist():
                for bucket in [desk.epoch + 1] if level < 0 else np.unique(buckets[levels == level]).tolist():
                    mask = levels == level if level < 0 else (levels == level) & (buckets == bucket)
                    table = bucket_table(f"{self.operator}.{_SOON if level < 0 else f'{kind}-{level}'}", bucket)
                    found.setdefault(table, []).append(rows.filter(pl.Series(mask)).select(HASH, *self.keys, AT))
        for table, frames in found.items():
            desk.write(table, pl.concat(frames).unique(maintain_order=True).sort(HASH, maintain_order=True))

    def _kind(self, table: str) -> tuple[str, int, int]:
        """``event``, ``clock``, ``later`` or ``soon``, the level and the bucket; an empty kind for a table that is no part of the wheel."""
        bucket = bucket_of(table)
        if bucket is None:
            return "", 0, 0
        kind, _, level = whole_table(table).removeprefix(f"{self.operator}.").partition("-")
        return kind, int(level or 0), bucket
