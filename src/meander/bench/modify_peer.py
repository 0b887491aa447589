"""Spark's own way to another function or condition: stop the query, and start the changed one from its checkpoint.

In the same session, which is kind: a new driver would take longer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from meander.bench.isolation import Progress
from meander.bench.modify_ours import Load
from meander.bench.modify_request import ModifyRequest
from meander.bench.peers import peer_settings
from meander.bench.statistics import Json
from meander.bench.steady import batch_name, saver

_COLUMNS = "key long, born double"


def run(request: ModifyRequest, progress: Progress) -> Json:
    """Three restarts: with another function, with another condition, with one more operator."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    settings: dict[str, Any] = peer_settings("spark-rocksdb", request.parallelism, request.memory)
    session = SparkSession.builder.master(request.master).appName(request.system).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    load = Load(request, first=0, names=lambda number: [batch_name(number)])
    save = saver(load.out)

    def same(batches: Any) -> Any:
        yield from batches

    def other(batches: Any) -> Any:
        for batch in batches:
            yield batch.filter(batch.column("born").is_valid())

    def start(function: Any, *conditions: str) -> Any:
        events = (
            session.readStream.schema("key long, born double").parquet(str(load.feed.folder)).mapInArrow(function, "key long, born double")
        )
        for condition in conditions:
            events = events.where(condition)
        counts = events.groupBy("key").agg(F.count("*").alias("n"), F.max("born").alias("born"))
        writer = counts.writeStream.outputMode("update").foreachBatch(save)
        writer = writer.option("checkpointLocation", str(Path(request.folder) / "checkpoint"))
        return writer.trigger(processingTime=f"{round(request.trigger * 1000)} milliseconds").start()

    query = start(same, "key >= 0")
    load.start()
    load.await_output(0.0)
    progress("warming up")
    time.sleep(request.warmup)
    steps = [
        ("replace", other, ("key >= 0",)),
        ("filter", other, ("key >= 0 and born > 1",)),
        ("insert", other, ("key >= 0 and born > 1", "key < 1000000000000")),
        ("remove", other, ("key >= 0 and born > 1",)),
    ]
    for name, function, conditions in steps:
        progress(name)
        began = time.time()
        time.sleep(request.seconds)
        asked = time.time()
        query.stop()
        stopped = time.time()
        query = start(function, *conditions)
        load.changes.append({"change": name, "began": began, "asked": asked, "in_force": load.await_output(stopped)})
    time.sleep(request.seconds)
    found = load.answer()
    query.stop()
    session.stop()
    return found
