"""Evacuates one of two executors under a flow without state and one with an exchange. Prints who read input and who counted.

Called by test_introduction.py: python leaving.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import polars as pl
from tests.drivers import write_input
from tests.spark.newcomer import executor_of

import meander as md


def build(folder: Path, stateful: bool) -> md.Flow:
    flow = md.Flow("leaving")
    read = flow.source("events", md.files(folder / "in", max_files_per_epoch=2)).map_batches(executor_of, name="read_at")
    if stateful:
        counts = read.key_by("key").aggregate(md.count().alias("n"), md.max("executor").alias("read_at"), name="counts")
        read = counts.map_batches(executor_of, name="counted_at")
    read.sink("out", md.parquet(folder / f"out-{stateful}"))
    return flow


def main() -> None:
    folder = Path(sys.argv[1])
    write_input(folder / "in", files=400, rows=100, keys=2000)
    spark = md.spark(master="local-cluster[2,1,1024]", spark_executorEnv_PYTHONPATH=os.environ["PYTHONPATH"])
    told = {}
    for stateful in (False, True):
        store = folder / f"state-{stateful}"
        with build(folder, stateful).start(store, spark=spark, small_epochs=False, work_ahead=False) as run:
            while run.status()["epoch"] < 4:
                time.sleep(0.05)
            leaving = min(run.status()["executors"])
            run.evacuate(leaving)
            after = run.status()["epoch"] + 1  # one may have begun
            while run.status()["epoch"] < after + 20:
                time.sleep(0.05)
        before, seen = set(), set()
        for path in (folder / f"out-{stateful}").glob("*.parquet"):
            frame = pl.read_parquet(path)
            who = seen if int(path.name.split("-")[1]) > after else before
            who |= {*frame["executor"], *(frame["read_at"] if stateful else ())}
        told[f"stateful {stateful}"] = {"leaving": leaving, "before": sorted(before), "after": sorted(seen)}
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
