"""An executor joins a flow that has one; its Python takes seconds to start. Prints what epochs and slots did meanwhile.

Called by test_introduction.py: python newcomer.py FOLDER
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
from tests.drivers import write_input

import meander as md
from meander.cache.reader import this_executor
from meander.on_spark.allocation import Manager
from meander.on_spark.session import executors

SLOW = 4.0


def executor_of(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.lit(this_executor() or "").alias("executor"))


def slow_python(folder: Path) -> None:
    """From now on every Python that starts on an executor takes its time, as on a cold machine. Forks of one that runs do not."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(f"import time\ntime.sleep({SLOW})\n")


def main() -> None:
    folder = Path(sys.argv[1])
    write_input(folder / "in", files=600, rows=500, keys=200)
    paths = os.pathsep.join([str(folder / "site"), os.environ["PYTHONPATH"]])
    # Spark sends a task anywhere that has waited for its place for long enough: on a slow machine that is soon.
    spark = md.spark(master="local-cluster[2,1,1024]", spark_executorEnv_PYTHONPATH=paths, spark_locality_wait_process="20s")
    manager, there = Manager(spark.sparkContext), set()
    while len(there) < 2:
        there = set(executors(spark.sparkContext)) - {"driver"}
    manager.request(1)
    while len(set(executors(spark.sparkContext)) - {"driver"}) > 1:
        manager.release(min(there))
        time.sleep(0.2)
    flow = md.Flow("newcomer")
    events = flow.source("events", md.files(folder / "in", max_files_per_epoch=1)).map_batches(executor_of, name="read_at")
    counts = events.key_by("key").aggregate(md.count().alias("n"), md.max("executor").alias("read_at"), name="counts")
    counts.map_batches(executor_of, name="counted_at").sink("out", md.parquet(folder / "out"))
    store = f"throttled://{folder}/state?latency_ms=1&mb_per_s=500"
    epochs: list[tuple[float, float, int]] = []
    seen: list[tuple[float, dict[str, Any]]] = []
    with flow.start(
        store, spark=spark, trigger="200ms", parallelism=2, small_epochs=False, dead_letters=str(folder / "dead"), retain_epochs=10_000
    ) as run:
        run.on_epoch(lambda done: epochs.append((time.monotonic(), sum(done.seconds.values()), done.epoch)))
        first = run.status()["executors"]

        def watch() -> None:
            while run.status()["state"] == "running":
                seen.append((time.monotonic(), run.status()["executors"]))
                time.sleep(0.05)

        threading.Thread(target=watch, daemon=True).start()
        time.sleep(4)
        slow_python(folder)
        manager.request(2)
        while not (joined := set(run.status()["executors"]) - set(first)):
            time.sleep(0.05)
        (newcomer,) = joined
        joined_at = time.monotonic()
        run.rescale("counts", 4)
        while not run.status()["executors"].get(newcomer, {}).get("slots") and time.monotonic() < joined_at + 40:
            time.sleep(0.05)
        time.sleep(4)
        stewards = dict(run._migration._runner.stewards)
    mine = [(at, status[newcomer]) for at, status in seen if newcomer in status]
    introduced = next((at for at, one in mine if one["introduced"]), None)
    slots = next((at for at, one in mine if one["slots"]), None)
    worked: dict[int, set[str]] = {}
    for path in (folder / "out").glob("*.parquet"):
        frame = pl.read_parquet(path)
        worked.setdefault(int(path.name.split("-")[1]), set()).update(frame["executor"], frame["read_at"])
    first_there = min((epoch for epoch, executors in worked.items() if newcomer in executors), default=None)
    rows = run.status()["rows_in"]
    files = sorted((folder / "in").iterdir())[: rows // 500]
    expected = pl.concat([pl.read_parquet(path) for path in files]).group_by("key").agg(pl.len().cast(pl.Int64).alias("n")).sort("key")
    state = pl.DataFrame(pl.from_arrow(md.read_state(store, "counts"))).select("key", "n").sort("key")
    told = {
        "newcomer": newcomer,
        "introduced": None if introduced is None else introduced - joined_at,
        "slots": None if slots is None else slots - joined_at,
        "before": [seconds for at, seconds, _ in epochs if joined_at + 0.5 < at < (introduced or joined_at)],
        "after": [seconds for at, seconds, _ in epochs if slots is not None and at > slots],
        "first there": next((seconds for _, seconds, epoch in epochs if epoch == first_there), None),
        "first there at": next((at - joined_at for at, _, epoch in epochs if epoch == first_there), None),
        "steward": stewards.get(newcomer),
        "equal": state.equals(expected),
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
