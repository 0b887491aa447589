"""A driver that kills itself with SIGKILL at a given step, and the flow that it runs.

The steps are the driver's own effects: every put, every link of a publication, every deletion. Nothing in the product knows of this:
the functions are wrapped here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from tests.drivers import write_input
from tests.oracle import check_totals

import meander as md
from meander.connect.parquet import ParquetSink
from meander.state.log import Log
from meander.state.stores.contract import DirStore
from meander.state.stores.redis import RedisStore
from meander.state.stores.s3 import S3Store


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
        odds = sizes.with_columns("m % 2 AS odd", name="odds").key_by("odd")
        counts = odds.aggregate(md.count().alias("c"), md.max("m").alias("most"), name="by_odd")
        counts.changes(name="log").sink("chain_out", md.parquet(request["out"] + "-chain"))
    return flow


def kill_as_asked(request: dict[str, Any]) -> None:
    """``"crash": ["put_if_absent", 4, "before"]``"""
    if request.get("crash"):
        name, nth, when = request["crash"]
        kill_at(OWNERS.get(name) or STORES.get(request["store"].split(":")[0], DirStore), name, nth, when)


EPOCH_STEPS = [
    ["put_if_absent", 4, "before"],  # the first epoch's log entry: 1 is the takeover, 2 and 3 are the plan
    ["put_if_absent", 4, "after"],
    ["publish", 2, "before"],
    ["link", 4, "after"],
    ["publish", 2, "after"],
    ["delete", 1, "before"],
]


def crash_chain(
    tmp_path: Path, child: Callable[..., Any], steps: list[list[Any]], files: int = 8, rows: int = 3000, **options: Any
) -> None:
    """A driver dies at each step, then one runs to the end; output and state are what the decisions in the log come to."""
    folder = write_input(tmp_path / "in", files=files, rows=rows, keys=700)
    request = {"store": str(tmp_path / "state"), "in": str(folder), "out": str(tmp_path / "out"), **options}
    for step in steps:
        code, _ = child(**request, crash=step).finish()
        assert code == -signal.SIGKILL, f"the driver was to die at {step}"
    code, answer = child(**request).finish()
    assert code == 0, answer
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    check_totals(tmp_path / "state", folder, tmp_path / "out", state)
