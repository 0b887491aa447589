"""A flow on a cluster of its own, its executors autoscaled: input comes slowly, then fast, then slowly. Prints a timeline and a verdict.

What a slot does costs time and no core (it sleeps for every row), so that more executors are of use on a machine without cores to spare.

Called by test_autoscaled.py: python autoscaled.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl

import meander as md

ROWS = 20
PER_ROW = 0.004
"""Seconds that a row costs: a slot does 250 rows per second."""
SLOW, FAST = 50, 220
"""Rows per second: a slot is enough for one, two are needed for the other, at 0.7 of their time."""


def take_time(frame: pl.DataFrame) -> pl.DataFrame:
    time.sleep(frame.height * PER_ROW)
    return frame


class Input(threading.Thread):
    """Files of some rows, every key new, at a rate that can be changed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        folder.mkdir()
        self.folder, self.rate, self.files, self.over = folder, SLOW, 0, threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while not self.over.wait(max(0.0, due - time.monotonic())):
            keys = range(self.files * ROWS, (self.files + 1) * ROWS)
            staged = self.folder / f".{self.files:05d}"
            pl.DataFrame({"key": keys, "value": [key % 7 for key in keys]}).write_parquet(staged)
            staged.rename(self.folder / f"{self.files:05d}.parquet")
            self.files += 1
            due = max(due + ROWS / self.rate, time.monotonic() - 1)


class Timeline(threading.Thread):
    """A line whenever slots or executors are others than before."""

    def __init__(self, run: md.Run) -> None:
        super().__init__(daemon=True)
        self.run_, self.began, self.lines, self.over = run, time.monotonic(), [], threading.Event()

    def run(self) -> None:
        last: Any = None
        while not self.over.wait(0.1):
            status = self.run_.status()
            executors = {name: one["slots"] for name, one in status["executors"].items()}
            slots = status["operators"]["totals"]["parallelism"]
            now = (slots, sorted(executors), status["autoscaler"]["executors"][-1:])
            if now != last:
                self.lines.append({"at": round(time.monotonic() - self.began, 1), "slots": slots, "executors": executors, "did": now[2]})
                print(json.dumps(self.lines[-1]), file=sys.stderr, flush=True)
            last = now

    def until(self, what: str, holds: Any, timeout: float) -> float:
        """When something held for the first time from now on."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            status = self.run_.status()
            if holds(status["operators"]["totals"]["parallelism"], status["executors"]):
                return round(time.monotonic() - self.began, 1)
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {timeout} s; {self.lines}; {self.run_.status()['autoscaler']}")


def main() -> None:
    folder = Path(sys.argv[1])
    source = Input(folder / "in")
    source.start()
    spark = md.spark(master="local-cluster[2,1,1024]", spark_executorEnv_PYTHONPATH=os.environ["PYTHONPATH"])
    flow = md.Flow("autoscaled")
    events = flow.source("events", md.files(folder / "in"))
    totals = events.key_by("key").aggregate(md.count().alias("n"), md.sum("value").alias("total"), name="totals")
    totals.map_batches(take_time, name="take_time").sink("out", md.parquet(folder / "out"))
    settings = md.autoscale(
        max=2,
        sample="2s",
        warmup_epochs=1,
        cooldown="3s",
        shrink_after="8s",
        catch_up=None,
        rescales_per_hour=20,
        slots_per_executor=1,
    )
    times = {}
    with flow.start(folder / "state", spark=spark, parallelism=1, autoscale=settings, retain_epochs=10_000) as run:
        timeline = Timeline(run)
        timeline.start()
        times["one executor is enough"] = timeline.until("released", lambda slots, there: slots == 1 and len(there) == 1, 60)
        source.rate = FAST
        times["faster at"] = round(time.monotonic() - timeline.began, 1)

        def grown(slots: int, there: dict[str, Any]) -> bool:
            return slots >= 2 and len([name for name, one in there.items() if one["slots"]]) >= 2

        times["executors added"] = timeline.until("added", grown, 60)
        times["slots"] = run.status()["operators"]["totals"]["parallelism"]
        time.sleep(5)
        source.rate = SLOW
        times["slower at"] = round(time.monotonic() - timeline.began, 1)
        times["executors released"] = timeline.until("released again", lambda slots, there: slots == 1 and len(there) == 1, 60)
        source.over.set()
        source.join()
        deadline = time.monotonic() + 30
        while run.status()["rows_in"] < source.files * ROWS and time.monotonic() < deadline:
            time.sleep(0.1)
        timeline.over.set()
    rows = source.files * ROWS
    expected = pl.DataFrame({"key": range(rows)}).with_columns(pl.lit(1, pl.Int64).alias("n"), (pl.col("key") % 7).alias("total"))
    state = pl.DataFrame(pl.from_arrow(md.read_state(folder / "state", "totals"))).sort("key")
    out = pl.read_parquet(folder / "out" / "*.parquet").sort("key")
    told = {
        **times,
        "rows": rows,
        "state": state.select("key", "n", "total").equals(expected),
        "output": out.select("key", "n", "total").equals(expected),
        "timeline": timeline.lines,
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
