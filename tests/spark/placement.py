"""Runs a flow on two executors and reports whether every slot stayed in one of them. Called by test_cluster.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars as pl
from tests.drivers import write_input

import meander as md


def note_process(frame: pl.DataFrame) -> pl.DataFrame:
    """The parent of a worker's parent is its executor."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return frame.with_columns(pl.lit(executor).cast(pl.Int64).alias("executor"))


def main() -> None:
    folder = Path(sys.argv[1])
    write_input(folder / "in", files=8, rows=1000, keys=100)
    spark = md.spark(master="local-cluster[2,1,1024]")
    flow = md.Flow("placement")
    events = flow.source("events", md.files(folder / "in", max_files_per_epoch=1))
    totals = events.key_by("key").aggregate(md.count().alias("n"), name="totals")
    totals.map_batches(note_process, name="where", deterministic=True).sink("out", md.parquet(folder / "out"))
    with flow.start(folder / "state", spark=spark, trigger=None, small_epochs=False) as run:
        run.process_available()
    places: dict[str, set[int]] = {}
    for path in sorted((folder / "out").glob("*.parquet"))[4:]:
        places.setdefault(path.name.split("-")[2], set()).update(pl.read_parquet(path)["executor"].to_list())
    print(places)
    print("every slot stayed where it was:", all(len(p) == 1 for p in places.values()) and len(set.union(*places.values())) == 2)
    spark.stop()


if __name__ == "__main__":
    main()
