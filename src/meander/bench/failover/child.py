"""A process of the benchmark of failover that is there to be killed: a replica of ours, or Spark's own query."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import meander as md
from meander.bench.harness.peers import peer_settings
from meander.bench.load.steady import SCHEMA, saver


def run_meander(asked: dict[str, Any]) -> None:
    """Count per key, as a replica or alone, until killed."""
    flow = md.Flow("steady")
    source = md.files(asked["input"], schema=SCHEMA, settle=0, max_files_per_epoch=asked.get("files_per_epoch"))
    events = flow.source("events", source).filter("key >= 0", name="positive")
    counts = events.key_by("key").aggregate(md.count().alias("n"), md.max("born").alias("born"), name="counts")
    counts.sink("out", md.parquet(asked["out"]))
    session = md.spark(master=asked["master"], app_name=asked["name"], spark_driver_memory=asked["memory"])
    store = Path(asked["folder"]) / "store"
    with flow.start(
        store, spark=session, parallelism=asked["parallelism"], trigger=asked["trigger"], idle_poll=0.02, **asked["options"]
    ) as run:
        if asked.get("serves"):
            (Path(asked["folder"]) / f"{asked['name']}.url").write_text(run.serve(port=0).url)
        _say(asked, "up")
        run.await_termination()


def run_spark(asked: dict[str, Any]) -> None:
    """The same as a query of Structured Streaming's, with the RocksDB state store."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    settings: dict[str, Any] = peer_settings("spark-rocksdb", asked["parallelism"], asked["memory"])
    session = SparkSession.builder.master(asked["master"]).appName(asked["name"]).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    events = session.readStream.schema("key long, born double").parquet(asked["input"])
    counts = events.groupBy("key").agg(F.count("*").alias("n"), F.max("born").alias("born"))
    writer = (
        counts.writeStream.outputMode("update")
        .foreachBatch(saver(Path(asked["out"])))
        .option("checkpointLocation", str(Path(asked["folder"]) / "checkpoint"))
    )
    query = writer.trigger(processingTime=asked["trigger"]).start()
    _say(asked, "up")
    query.awaitTermination()


def _say(asked: dict[str, Any], word: str) -> None:
    (Path(asked["folder"]) / f"{asked['name']}.{word}").write_text(str(time.time()))


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    if "cores" in chosen:
        os.sched_setaffinity(0, chosen["cores"])  # also of all that it starts
    (run_spark if chosen["system"] == "spark" else run_meander)(chosen)
