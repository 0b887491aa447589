"""A driver process for crash tests: runs a flow over a folder, and kills itself with SIGKILL at a given step.

    python child.py '{"store": …, "in": …, "out": …, "crash": ["put_if_absent", 3, "before"], …}'

The steps are the driver's own effects: every put, every link of a publication, every deletion. Nothing in the product knows of this:
the functions are wrapped here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import meander as md
from meander.connect.parquet import ParquetSink
from meander.state.log import Log
from meander.state.redis import RedisStore
from meander.state.s3 import S3Store
from meander.state.store import DirStore


def kill_at(owner: Any, name: str, nth: int, when: str) -> None:
    """Replace a function by one that dies with its nth call, before or after its effect."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += counts(name, args)
        if calls == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if calls == nth and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


def counts(name: str, args: tuple[Any, ...]) -> bool:
    """Of links only the publications, of the store's verbs all but the probe at the start and the lease's beats."""
    if name == "link":
        return str(args[1]).endswith(".parquet")
    return not (len(args) > 1 and str(args[1]).startswith(("probe/", "lease/")))


STORES: dict[str, Any] = {"redis": RedisStore, "s3": S3Store}
OWNERS: dict[str, Any] = {
    "publish": ParquetSink,
    "link": os,
    "snapshot": Log,
}


def build(request: dict[str, Any], spark: Any) -> md.Flow:
    flow = md.Flow("crash")
    if request.get("structured"):
        stream = spark.readStream.schema("key long, value double").option("maxFilesPerTrigger", "1").parquet(request["in"])
        source: Any = md.spark_stream(stream)
    else:
        source = md.files(request["in"], max_files_per_epoch=request.get("files", 1))
    events = flow.source("events", source)
    totals = events.key_by("key").aggregate(
        md.count().alias("n"),
        md.sum("value").alias("total"),
        md.count_distinct("value").alias("different"),
        *([md.collect("value").alias("values")] if request.get("lists", True) else []),
        name="totals",
    )
    totals.sink("out", md.parquet(request["out"]))
    if request.get("chain"):  # three stateful stages in a row
        sizes = totals.with_columns("n % 5 AS size", name="sizes").key_by("size").aggregate(md.sum("n").alias("m"), name="by_size")
        sizes.with_columns("m % 2 AS odd", name="odds").key_by("odd").aggregate(md.count().alias("c"), name="by_odd").sink(
            "chain_out", md.parquet(request["out"] + "-chain")
        )
    return flow


def main() -> None:
    request = json.loads(sys.argv[1])
    if request.get("crash"):
        name, nth, when = request["crash"]
        kill_at(OWNERS.get(name) or STORES.get(request["store"].split(":")[0], DirStore), name, nth, when)
    spark = md.spark(master=request.get("master", "local[2]"))
    try:
        run = build(request, spark).start(
            request["store"],
            spark=spark,
            trigger=request.get("trigger"),
            parallelism=request.get("parallelism", 2),
            small_epochs=request.get("small", False),
            takeover=request.get("takeover", False),
            retain_epochs=100_000,
            dead_letters=request.get("dead_letters"),
        )
        print("started", flush=True)
        if request.get("trigger") is not None:
            run.await_termination()
        progress = run.process_available()
        run.stop()
        print(json.dumps({"epochs": progress.epochs, "rows_in": progress.rows_in, "status": run.status()["state"]}), flush=True)
    except md.MeanderError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
