"""Rescales a flow on two executors, its store behind a slow line, by every strategy, and kills an old owner. Prints what was fetched.

Called by test_migration.py: python migration.py FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import meander as md

KEYS = 200_000


def write_input(folder: Path, small: int) -> None:
    """Two files that touch most keys, and many that touch one in a hundred."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(2 + small):
        rows = 2 * KEYS if number < 2 else KEYS // 100
        frame = {"key": rng.integers(0, KEYS, rows), "value": rng.integers(0, 1000, rows) * 0.25, "text": ["x" * 60] * rows}
        pl.DataFrame(frame).write_parquet(folder / f"{number:04d}.parquet")
        os.utime(folder / f"{number:04d}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))


def build(folder: Path) -> md.Flow:
    flow = md.Flow("moving")
    events = flow.source("events", md.files(folder / "in", max_files_per_epoch=1))
    totals = events.key_by("key").aggregate(
        md.count().alias("n"),
        md.sum("value").alias("total"),
        md.max("text").alias("text"),
        md.count_distinct("value").alias("d"),
        name="totals",
    )
    totals.sink("out", md.discard())
    return flow


def kill_executor(name: str) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            process, words = int(path.parent.name), path.read_bytes().decode(errors="replace").split("\0")
            ours = "--executor-id" in words and os.getsid(process) == os.getsid(0)
            if ours and words[words.index("--executor-id") + 1] == name:
                os.kill(process, signal.SIGKILL)
        except OSError:
            continue


class Watch:
    """What each epoch fetched."""

    def __init__(self, run: md.Run) -> None:
        self._run, self.epochs = run, []
        run.on_epoch(self._note)

    def _note(self, done: Any) -> None:
        counts = done.outcome.counts
        self.epochs.append((counts.get("fetched_from_peers", 0), counts.get("fetched_from_store", 0), sum(done.seconds.values())))

    def wait(self, more: int) -> list[Any]:
        before = len(self.epochs)
        deadline = time.monotonic() + 60
        while len(self.epochs) < before + more and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.epochs[before:]


def main() -> None:
    folder = Path(sys.argv[1])
    write_input(folder / "in", small=400)
    store = f"throttled://{folder}/state?latency_ms=2&mb_per_s=200"
    spark = md.spark(master="local-cluster[2,1,1024]")
    told: dict[str, Any] = {}
    with build(folder).start(store, spark=spark, parallelism=1, small_epochs=False, dead_letters=str(folder / "dead")) as run:
        watch = Watch(run)
        watch.wait(8)
        told["bytes"] = run.status()["operators"]["totals"]["bytes"]
        for number, strategy in enumerate(("lazy", "prefetch", "hybrid", "eager", "lazy")):
            change = run.rescale("totals", 1 if number % 2 else 2, strategy=strategy)
            told[f"{number} {strategy}"] = {"epochs": watch.wait(4), "fetched": change.fetched, "failures": change.failures}
        told["migrated"] = {}
        for executor in ("1", "0"):
            done = run.migrate("totals", executor)
            told["migrated"][executor] = {
                "epochs": watch.wait(3),
                "moved": done.moved,
                "slots": run.status()["operators"]["totals"]["routing"],
            }
        kill_executor("0")
        told["killed"] = watch.wait(6)
    rows = run.status()["rows_in"]
    state = pl.DataFrame(pl.from_arrow(md.read_state(store, "totals")))
    taken, frames = 0, []
    for path in sorted((folder / "in").iterdir()):
        if taken < rows:
            frames.append(pl.read_parquet(path))
            taken += frames[-1].height
    value = pl.col("value")
    folds = (pl.len().cast(pl.Int64).alias("n"), value.sum().alias("total"), value.n_unique().cast(pl.Int64).alias("d"))
    expected = pl.concat(frames).group_by("key").agg(*folds).sort("key")
    told["equal"] = taken == rows and state.select("key", "n", "total", "d").sort("key").equals(expected)
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
