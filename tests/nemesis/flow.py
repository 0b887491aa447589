"""The flow that the nemesis attacks: one of each kind of operator and sink. No result depends on how input is cut into epochs.

Given to ``meander run``. Input and output are below the folder in the environment variable NEMESIS_FOLDER.
"""

import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar

import polars as pl

import meander as md

FOLDER = os.environ.get("NEMESIS_FOLDER", ".")
BUCKET = timedelta(seconds=10)


class Buckets(md.Processor):
    """The sum of every ten seconds of a key, given out by a timer when they are over."""

    output: ClassVar[Any] = {"bucket": "timestamp", "rows": "int64", "total": "int64"}
    rows = md.map_of("timestamp", "int64")
    totals = md.map_of("timestamp", "int64")

    def on_events(self, key: int, rows: Any, state: Any, ctx: Any) -> None:
        for row in rows:
            bucket = row.ts - timedelta(seconds=row.ts.second % 10, microseconds=row.ts.microsecond)
            state.rows[bucket] = state.rows.get(bucket, 0) + 1
            state.totals[bucket] = state.totals.get(bucket, 0) + row.v
            ctx.set_timer(bucket + BUCKET)

    def on_timer(self, key: int, time: datetime, state: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        bucket = time - BUCKET
        if bucket in state.rows:
            yield bucket, state.rows.pop(bucket), state.totals.pop(bucket)


def record(frame: pl.DataFrame, epoch: int) -> None:
    """One line per call, in the order of the calls, on a disk that is never full.

    The checker applies them as the documentation says that a function must.
    """
    line = json.dumps({"epoch": epoch, "pid": os.getpid(), "rows": frame.select("seq", "v").rows()}) + "\n"
    handle = os.open(f"{FOLDER}/calls.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def flow() -> md.Flow:
    made = md.Flow("nemesis")
    columns = {"seq": "long", "key": "long", "v": "long", "kind": "long", "shard": "string", "ts": "timestamp"}
    events = made.source("events", md.files(f"{FOLDER}/in/events", schema=columns, settle=0))
    payments = made.source(
        "payments", md.files(f"{FOLDER}/in/payments", schema={"order": "long", "paid": "long", "at": "timestamp"}, settle=0)
    )

    valid = events.filter("v >= 0", name="valid")
    valid.key_by("key").aggregate(md.count().alias("n"), md.sum("v").alias("total"), name="counts").sink(
        "counts_out", md.parquet(f"{FOLDER}/out/counts")
    )
    valid.sink("parts_out", md.parquet(f"{FOLDER}/out/parts", partition_by="shard"))

    timed = valid.watermark("ts", grace="30s", name="time")
    windows = timed.key_by("shard").window(md.tumbling("10s")).aggregate(md.count().alias("n"), md.sum("v").alias("total"), name="windows")
    windows.sink("windows_out", md.parquet(f"{FOLDER}/out/windows"))
    windows.late().sink("late_out", md.parquet(f"{FOLDER}/out/late"))

    in_time = timed.filter("kind <> 2", name="in_time")
    in_time.key_by("key").process(Buckets, name="buckets").sink("buckets_out", md.parquet(f"{FOLDER}/out/buckets"))

    orders = in_time.filter("kind = 1", name="orders")
    orders.sink("calls_out", md.foreach_batch(record))
    paid = orders.join(
        payments.watermark("at", grace="30s", name="paid_time"), left_on="seq", right_on="order", within=("0s", "20s"), name="paid"
    )
    paid.sink("paid_out", md.parquet(f"{FOLDER}/out/paid"))
    return made
