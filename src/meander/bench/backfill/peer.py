"""The peer of the benchmark of long spans: Spark's own operator over the same files, one of each folder per micro-batch.

State is in RocksDB with changelog checkpoints, as in the other benchmarks. Timers are a ``transformWithState`` that works row by row,
which is the faster of Spark's two in Python. For the as-of join of two streams Spark has no operator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import meander as md
from meander.bench.backfill.request import GAP, GRACE, SLIDE, WINDOW, WITHIN, BackfillRequest, Record
from meander.bench.harness.peers import peer_settings
from meander.bench.harness.statistics import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SCHEMA = "key long, id long, seq long, value double, ts timestamp_ntz"


def run(request: BackfillRequest, progress: Callable[[int], None]) -> Json:
    """All files, batch by batch; batches are put on record as they end."""
    from pyspark.sql import SparkSession  # only measuring processes pay for this

    settings: dict[str, Any] = {**settings_of(request), **request.settings}
    session = SparkSession.builder.master(request.master).appName(request.system).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    record = Record(request.folder)
    checkpoint = Path(request.folder) / "checkpoint"
    writer = define(session, request).writeStream.outputMode("append").format("parquet").option("path", request.output)
    record.begin()
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    reported = 0
    while not query.awaitTermination(1):
        reported = _put_down(query, record, reported, progress)
    _put_down(query, record, reported, progress)
    dropped = sum(
        state.get("numRowsDroppedByWatermark", 0) for report in query.recentProgress for state in json.loads(report.json)["stateOperators"]
    )
    session.stop()
    if dropped:
        raise md.Corrupted(f"{request.system}, {request.operator}: {dropped} rows were dropped as late; the input has none")
    return {}


def settings_of(request: BackfillRequest) -> dict[str, str]:
    return {**peer_settings("spark-rocksdb", request.parallelism, request.memory), "spark.sql.session.timeZone": "UTC"}


def _put_down(query: StreamingQuery, record: Record, reported: int, progress: Callable[[int], None]) -> int:
    batches = [json.loads(report.json) for report in query.recentProgress]
    batches = [batch for batch in batches if batch["numInputRows"]]
    for batch in batches[reported:]:
        began = datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()
        record.add({"end": began + batch["durationMs"]["triggerExecution"] / 1000, "rows_in": batch["numInputRows"]})
        progress(batch["batchId"] + 1)
    return len(batches)


def define(session: SparkSession, request: BackfillRequest) -> DataFrame:
    """The operator, as a user of Spark writes it. Times come out as microseconds."""
    from pyspark.sql import functions as F

    streams = [
        session.readStream.schema(_SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(side)
        .withColumn("ts", F.col("ts").cast("timestamp"))
        .withWatermark("ts", f"{GRACE} seconds")
        for side in request.sides
    ]
    if request.operator == "join":
        left, right = streams
        right = right.select(F.col("key").alias("key_right"), F.col("seq").alias("seq_right"), F.col("ts").alias("ts_right"))
        near = f"ts_right >= ts - INTERVAL {WITHIN} SECONDS AND ts_right <= ts + INTERVAL {WITHIN} SECONDS"
        return left.join(right, F.expr(f"key = key_right AND {near}")).select("key", "seq", "seq_right")
    (events,) = streams
    if request.operator == "deduplicate":
        return events.dropDuplicatesWithinWatermark(["id"]).select("key", "id")
    if request.operator == "timers":
        return _timers(events.select("key", "value", "ts", F.unix_micros("ts").alias("at")))
    window = {
        "tumbling": lambda: F.window("ts", f"{WINDOW} seconds"),
        "sliding": lambda: F.window("ts", f"{WINDOW} seconds", f"{SLIDE} seconds"),
        "session": lambda: F.session_window("ts", f"{GAP} seconds"),
    }[request.operator]()
    counted = events.groupBy("key", window.alias("w")).agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    return counted.select("key", F.unix_micros("w.start").alias("began"), F.unix_micros("w.end").alias("ended"), "n", "total")


def _timers(events: DataFrame) -> DataFrame:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    size = WINDOW * 1000

    class Visits(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            self.state = handle.getValueState("visit", "n long, total double")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            stored = self.state.get()
            n, total = (0, 0.0) if stored is None else stored
            for row in rows:
                if not n:
                    self.handle.registerTimer(row.at // 1000 // size * size + size)
                n += 1
                total += row.value
            self.state.update((n, total))
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            stored = self.state.get()
            assert stored is not None, "a timer is set with the state"
            n, total = stored
            self.state.clear()
            yield Row(key=key[0], fired=expiredTimerInfo.getExpiryTimeInMs() * 1000, n=n, total=total)

        def close(self) -> None: ...

    output = "key long, fired long, n long, total double"
    return events.groupBy("key").transformWithState(Visits(), output, "append", "eventTime")
