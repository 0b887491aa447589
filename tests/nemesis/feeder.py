"""Writes the input, one pair of files at a time, and keeps a record of every row.

Event time is the feeder's own: a file is one second of it. Rows are out of order by less than the grace, so they are never late, or they
are hours behind and always late. So results do not depend on how the flow cuts its input into epochs. Files appear by rename.
"""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

BASE = datetime(2026, 3, 1)
DISORDER = 8.0
"""Seconds by which rows of one file are out of order; the flow's grace is 30 s, and a payment comes at most 10 s behind its order."""
LATE = timedelta(hours=6)
SHARDS = ["a", "b", "c d", "e/f", "ü%", "g=h"]
EVENTS = {"seq": pl.Int64, "key": pl.Int64, "v": pl.Int64, "kind": pl.Int64, "shard": pl.String, "ts": pl.Datetime("us")}
PAYMENTS = {"order": pl.Int64, "paid": pl.Int64, "at": pl.Datetime("us")}
PLAIN, ORDER, LATE_ROW = 0, 1, 2


class Feeder:
    """A thread that writes files at a rate. ``events`` and ``payments`` are all rows that it has written, as frames."""

    def __init__(self, folder: Path, seed: int, rate: int, every: float = 0.5) -> None:
        self._folder, self._rows, self._every = folder, max(4, int(rate * every)), every
        self._chance = random.Random(f"feeder {seed}")
        self._frames: dict[str, list[pl.DataFrame]] = {"events": [], "payments": []}
        self._seq = self._number = 0
        self._due: list[tuple[float, tuple[int, int, datetime]]] = []
        self.late_allowed = threading.Event()
        """Set once the flow has a watermark: from then on rows that are hours behind are late, whatever the epochs are."""
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="nemesis-feeder", daemon=True)
        for name in self._frames:
            (folder / name).mkdir(parents=True)

    def begin(self) -> None:
        """The first files alone: a flow that takes long to start should not find a pile."""
        self._write_second()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write no more."""
        self._halt.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Pay what is owed, and move event time a day ahead, so that every window and timer of interest is over."""
        self.stop()
        self._number += 30
        self._write_second(last=True)
        end = BASE + timedelta(days=1)
        self._seq += 1
        self._write("events", pl.DataFrame([(self._seq, -1, 0, PLAIN, "a", end)], schema=EVENTS, orient="row"))
        self._write("payments", pl.DataFrame([(-1, 0, end)], schema=PAYMENTS, orient="row"))

    def written(self, name: str) -> pl.DataFrame:
        schema = EVENTS if name == "events" else PAYMENTS
        return pl.concat([pl.DataFrame(schema=schema), *self._frames[name]])

    def _feed(self) -> None:
        due = time.monotonic()
        while not self._halt.is_set():
            self._write_second()
            due = max(due + self._every, time.monotonic() - 5 * self._every)
            self._halt.wait(max(0.0, due - time.monotonic()))

    def _write_second(self, last: bool = False) -> None:
        self._number += 1
        now = float(self._number)
        rows = []
        for _ in range(self._rows):
            self._seq += 1
            at = max(0.0, now - self._chance.uniform(0.0, DISORDER))
            kind = self._kind()
            ts = BASE + timedelta(microseconds=int(at * 1e6)) - (LATE if kind == LATE_ROW else timedelta())
            rows.append((self._seq, self._key(), self._chance.randrange(1000), kind, self._chance.choice(SHARDS), ts))
            if kind == ORDER:
                self._owe(at)
        self._write("events", pl.DataFrame(rows, schema=EVENTS, orient="row"))
        paid = [payment for time_due, payment in self._due if last or time_due <= now]
        self._due = [] if last else [owed for owed in self._due if owed[0] > now]
        self._write("payments", pl.DataFrame(paid, schema=PAYMENTS, orient="row"))

    def _kind(self) -> int:
        drawn = self._chance.random()
        if drawn < 0.01 and self.late_allowed.is_set():
            return LATE_ROW
        return ORDER if drawn > 0.9 else PLAIN

    def _key(self) -> int:
        """Four in ten rows have one key; the others follow a power law."""
        return 0 if self._chance.random() < 0.4 else min(20_000, int(self._chance.paretovariate(0.7)))

    def _owe(self, at: float) -> None:
        """A payment within the join's bound, one beyond it, two, or none."""
        drawn = self._chance.random()
        delays = [self._chance.uniform(0.0, 10.0)] if drawn < 0.7 else [5.0, 8.0] if drawn < 0.8 else [25.0] if drawn < 0.9 else []
        for delay in delays:
            when = BASE + timedelta(microseconds=int((at + delay) * 1e6))
            self._due.append((at + delay, (self._seq, self._chance.randrange(1000), when)))

    def _write(self, name: str, frame: pl.DataFrame) -> None:
        if not frame.height:
            return
        self._frames[name].append(frame)
        place = self._folder / name / f"{len(self._frames[name]):08d}.parquet"
        staged = place.with_name(f".{place.name}")
        frame.write_parquet(staged)
        os.replace(staged, place)
