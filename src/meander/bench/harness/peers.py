"""The peers: Spark's own ``groupBy().agg()`` in update mode, each in the fastest configuration we know.

Both run back to back over the same files, as many per micro-batch as Meander takes per epoch, keep their state durable in a checkpoint
on the same disk, and send their output nowhere. ``_BOTH`` and ``PEERS`` are what they have beside Spark's defaults (which include
code generation and vectorised Parquet); ``--spark-setting`` tries something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import meander as md
from meander.bench.harness.isolation import Request
from meander.bench.harness.statistics import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_STORE = "spark.sql.streaming.stateStore"
_BOTH = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Otherwise a second small file is written beside every checkpoint file.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # How this benchmark learns the batches' times.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
PEERS: dict[str, dict[str, str]] = {
    "spark-rocksdb": {
        f"{_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        # Otherwise every put is preceded by a get, for a metric.
        f"{_STORE}.rocksdb.trackTotalNumberOfRows": "false",
    },
    "spark-memory": {},
}


def peer_settings(system: str, parallelism: int, memory: str) -> dict[str, str]:
    """The peer's whole configuration: as many state partitions as Meander has slots, and the same heap."""
    return {**_BOTH, **PEERS[system], "spark.sql.shuffle.partitions": str(parallelism), "spark.driver.memory": memory}


def run_peer(request: Request, progress: Callable[[int], None]) -> Json:
    """All of the input, batch by batch; the answer has the moment at which each ended and what it spent its time on."""
    from pyspark.sql import SparkSession  # only measuring processes pay for this
    from pyspark.sql import functions as F

    settings: dict[str, Any] = {**peer_settings(request.system, request.parallelism, request.memory), **request.settings}
    session = SparkSession.builder.master(request.master).appName(request.system).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    checkpoint = str(Path(request.folder) / "checkpoint")
    events = session.readStream.schema("key long, value double").option("maxFilesPerTrigger", request.input.files_per_epoch)
    totals = events.parquet(request.input.folder).groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    writer = totals.writeStream.outputMode("update").format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    while not query.awaitTermination(1):
        last = query.lastProgress
        if last is not None:
            progress(last.batchId + 1)
    epochs = [_describe(batch) for batch in _batches(query)]
    _verify(session, checkpoint, epochs, request)
    session.stop()
    return {"epochs": epochs}


def _batches(query: StreamingQuery) -> list[Json]:
    batches: list[Json] = [json.loads(progress.json) for progress in query.recentProgress]
    return [batch for batch in batches if batch["numInputRows"]]


def _describe(batch: Json) -> Json:
    began = datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()
    parts: dict[str, Any] = dict(batch["durationMs"])
    whole = parts.pop("triggerExecution")
    operator = batch["stateOperators"][0]
    tasks = {name: operator[name] for name in ("allUpdatesTimeMs", "commitTimeMs") if name in operator}
    return {"end": began + whole / 1000, "rows_in": batch["numInputRows"], "wall_ms": parts, "task_ms": tasks}


def _verify(session: SparkSession, checkpoint: str, epochs: list[Json], request: Request) -> None:
    """The peer, too, must have counted every event once, in as many batches as there are epochs."""
    expected = request.input
    rows = sum(epoch["rows_in"] for epoch in epochs)
    (state,) = session.read.format("statestore").load(checkpoint).selectExpr("sum(value.count)", "count(*)", "sum(value.sum)").collect()
    found = (len(epochs), rows, state[0], state[1])
    if found != (expected.epochs, expected.events, expected.events, expected.keys) or not math.isclose(
        state[2], expected.total, rel_tol=1e-9
    ):
        raise md.Corrupted(f"{request.system}: batches, rows read, events and keys in the state are {found}, the input is {expected}")
