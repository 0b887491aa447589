"""What every sink must have in the end, from the feeder's record alone: plain sums over rows, nothing of the engine's."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta

import polars as pl
from tests.nemesis.feeder import BASE, LATE_ROW, ORDER

TEN = timedelta(seconds=10)
END = BASE + timedelta(days=1) - timedelta(minutes=2)
"""What ends before this has ended when the feeder's last rows have been read."""


def ten_seconds(ts: datetime) -> datetime:
    return ts - timedelta(seconds=ts.second % 10, microseconds=ts.microsecond)


def expected(events: pl.DataFrame, payments: pl.DataFrame) -> dict[str, Counter[tuple[object, ...]]]:
    """Per sink, the rows that must be there and how often. Of ``counts`` the last row of every key."""
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    windows: dict[tuple[str, datetime], list[int]] = defaultdict(lambda: [0, 0])
    buckets: dict[tuple[int, datetime], list[int]] = defaultdict(lambda: [0, 0])
    found: dict[str, Counter[tuple[object, ...]]] = {
        name: Counter() for name in ("counts", "parts", "windows", "late", "buckets", "calls", "paid")
    }
    orders: dict[int, datetime] = {}
    for seq, key, v, kind, shard, ts in events.iter_rows():
        for total in (
            counts[key],
            windows[shard, ten_seconds(ts)] if kind != LATE_ROW else [0, 0],
            buckets[key, ten_seconds(ts)] if kind != LATE_ROW else [0, 0],
        ):
            total[0] += 1
            total[1] += v
        found["parts"][seq, key, v, kind, shard, ts] += 1
        if kind == LATE_ROW:
            found["late"][seq, key, v, kind, shard, ts] += 1
        elif kind == ORDER:
            orders[seq] = ts
            found["calls"][seq, v] += 1
    for order, paid, at in payments.iter_rows():
        if order in orders and timedelta() <= at - orders[order] <= timedelta(seconds=20):
            found["paid"][order, paid, at] += 1
    found["counts"].update((key, n, total) for key, (n, total) in counts.items())
    found["windows"].update((shard, start, n, total) for (shard, start), (n, total) in windows.items() if start + TEN <= END)
    found["buckets"].update((key, start, n, total) for (key, start), (n, total) in buckets.items() if start + TEN <= END)
    return found
