"""Spark's own way to another number of state partitions: stop the query, repartition its checkpoint offline, start it again.

The same events at the same rate, in small files that appear by renaming, and the same count, sum and bytes per key in the RocksDB provider.
The peer gets what it can get: it is stopped between two batches, since repartitioning refuses a checkpoint with a batch that was begun and
not finished. A query that is never between two batches is drained first.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import meander as md
from meander.bench.harness.isolation import Progress
from meander.bench.harness.latency import Published, is_calm, latency_numbers
from meander.bench.harness.peers import peer_settings
from meander.bench.harness.statistics import Json
from meander.bench.load.workload import Workload
from meander.bench.rescale.request import RescaleRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_EVERY = 0.2
"""Seconds of events per file."""
_TRIGGER = "1 second"
_LOAD_FILES = 2
_IDLE_WITHIN = 10.0


def run(request: RescaleRequest, progress: Progress) -> Json:
    """Load, run steady, rescale, run on, rescale back, run on."""
    from pyspark.sql import SparkSession  # only measuring processes pay for this

    before, after = request.slots
    settings: dict[str, Any] = {**peer_settings("spark-rocksdb", before, request.memory)}
    session = SparkSession.builder.master(request.master).appName(request.system).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    folder = Path(request.folder) / "input"
    folder.mkdir()
    progress("loading")
    _write_loading(folder, request)
    query = _Query(session, folder, request)
    query.load(progress)
    progress("warming up")
    with _Feeder(folder, request.workload) as feeder:
        query.began = feeder.began
        query.start(before)
        query.rest(request.warmup)
        measured_from = time.time()
        progress("steady")
        query.rest(request.seconds)
        steady = latency_numbers([epoch for epoch in query.published() if epoch.end >= measured_from])["p99"]
        changes = []
        for slots in (after, before):
            progress(f"rescaling to {slots}")
            changes.append(query.rescale(slots))
            progress(f"catching up at {slots}")
            query.rest_until_calm(steady, request.patience)
            query.rest(request.seconds)
        query.stop()
    epochs = [{"end": e.end, "rows": e.rows, "first": e.first, "last": e.last} for e in query.published()]
    _verify(session, query, request)
    session.stop()
    return {"epochs": epochs, "changes": changes, "measured_from": measured_from, "state_bytes": _size(query.checkpoint)}


class _Query:
    """The query through all its restarts, and the batches it has done since the loading."""

    def __init__(self, session: SparkSession, folder: Path, request: RescaleRequest) -> None:
        self._session, self._folder, self._request = session, folder, request
        self.checkpoint = Path(request.folder) / "checkpoint"
        self.began = 0.0
        self._query: StreamingQuery | None = None
        self._batches: dict[int, tuple[float, int]] = {}
        """By batch: its end, and its rows."""
        self.loaded = 0

    def load(self, progress: Progress) -> None:
        query = self._writer(_LOAD_FILES).trigger(availableNow=True).start()
        files = -(-self._request.workload.keys // self._request.load_rows)
        while not query.awaitTermination(5):
            last = query.lastProgress
            progress(f"loading, {0 if last is None else _LOAD_FILES * (last.batchId + 1)} of {files} files")
        self.loaded = sum(json.loads(batch.json)["numInputRows"] for batch in query.recentProgress)

    def start(self, slots: int) -> None:
        self._session.conf.set("spark.sql.shuffle.partitions", str(slots))
        self._query = self._writer(None).trigger(processingTime=_TRIGGER).start()

    def rest(self, seconds: float) -> None:
        assert self._query is not None
        self._query.awaitTermination(max(1, round(seconds)))  # raises what it failed with
        self._note()

    def rest_until_calm(self, steady: float, patience: float) -> None:
        deadline = time.monotonic() + patience
        while not is_calm(self.published(), steady) and time.monotonic() < deadline:
            self.rest(1)

    def rescale(self, slots: int) -> Json:
        asked = time.time()
        self.stop()
        stopped = time.time()
        drained = not self._repartition(slots)
        if drained:  # a batch was begun and not finished: have Spark finish it, then there is nothing left to refuse
            self._query = self._writer(None).trigger(availableNow=True).start()
            self._query.awaitTermination(round(self._request.patience))
            self._note()
            self._session._streamingCheckpointManager.repartition(str(self.checkpoint), slots)
        repartitioned = time.time()
        self.start(slots)
        back = self._first_output(repartitioned)
        parts = {"stop": stopped - asked, "repartition": repartitioned - stopped, "restart": back - repartitioned}
        return {"asked": asked, "in_force": back, "slots": slots, "drained": drained, "parts": parts}

    def _first_output(self, after: float) -> float:
        deadline = time.monotonic() + self._request.patience
        while time.monotonic() < deadline:
            self.rest(1)
            ends = [end for end, _ in self._batches.values() if end > after]
            if ends:
                return min(ends)
        raise md.Retryable(f"{self._request.system}: no output {self._request.patience:g} s after its restart; allow more with --patience")

    def stop(self) -> None:
        """Between two batches, where there is such a moment."""
        query = self._query
        assert query is not None
        deadline = time.monotonic() + _IDLE_WITHIN
        while query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.01)
        query.stop()
        self._note()

    def published(self) -> list[Published]:
        """Files are taken in the order in which they appeared: so the number of rows before a batch says when its events were created."""
        rate, before, found = self._request.workload.rate, 0, []
        for _, (end, rows) in sorted(self._batches.items()):
            found.append(Published(end, rows, self.began + before / rate, self.began + (before + rows - 1) / rate))
            before += rows
        return found

    def _note(self) -> None:
        assert self._query is not None
        for progress in self._query.recentProgress:
            batch: Json = json.loads(progress.json)
            if batch["numInputRows"]:
                began = datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()
                self._batches[batch["batchId"]] = (began + batch["durationMs"]["triggerExecution"] / 1000, batch["numInputRows"])

    def _repartition(self, slots: int) -> bool:
        try:
            self._session._streamingCheckpointManager.repartition(str(self.checkpoint), slots)
        except Exception as error:
            if "LAST_BATCH_FAILED" not in str(error):
                raise
            return False
        return True

    def _writer(self, files: int | None) -> Any:
        from pyspark.sql import functions as F

        events = self._session.readStream.schema("key long, value double")
        if files is not None:
            events = events.option("maxFilesPerTrigger", files)
        held = F.expr(junk_expression(self._request.workload.junk))
        totals = events.parquet(str(self._folder)).groupBy("key")
        aggregated = totals.agg(F.count("*").alias("n"), F.sum("value").alias("total"), F.max(held).alias("held"))
        # Not dropped: Spark would notice that nobody wants it, and not keep it either.
        result = aggregated.withColumn("held", F.length("held"))
        return result.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(self.checkpoint))


def junk_expression(size: int) -> str:
    """Text of so many bytes that depends on the key and does not compress to nothing.

    >>> junk_expression(130)
    "substr(concat(sha2(concat(key, '-0'), 512), sha2(concat(key, '-1'), 512)), 1, 130)"
    """
    pieces = ", ".join(f"sha2(concat(key, '-{number}'), 512)" for number in range(-(-size // 128))) or "''"
    return f"substr(concat({pieces}), 1, {size})"


def _write_loading(folder: Path, request: RescaleRequest) -> None:
    for number, start in enumerate(range(0, request.workload.keys, request.load_rows)):
        count = min(request.load_rows, request.workload.keys - start)
        _publish(folder, f"load-{number:06d}", request.workload.loading(start, count, 0.0).select("key", "value"))


def _publish(folder: Path, name: str, frame: Any) -> None:
    frame.write_parquet(folder / f".{name}")
    os.replace(folder / f".{name}", folder / f"{name}.parquet")


class _Feeder:
    """Writes the steady stream into the folder, whatever the query does."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._folder, self._workload = folder, workload
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self.began = time.time()
        self.failure: Exception | None = None

    def __enter__(self) -> _Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _feed(self) -> None:
        # One partition: the row's number is the event's number, and the peer counts rows.
        workload = Workload(keys=self._workload.keys, skew=self._workload.skew, rate=self._workload.rate, seed=self._workload.seed)
        taken = 0
        try:
            for number in itertools.count():
                self._over.wait(max(0.0, self.began + (number + 1) * _EVERY - time.time()))
                if self._over.is_set():
                    return
                due = int((number + 1) * _EVERY * workload.rate)
                if due > taken:
                    _publish(
                        self._folder, f"steady-{number:08d}", workload.events(0, taken, due - taken, self.began).select("key", "value")
                    )
                    taken = due
        except Exception as error:
            self.failure = error


def _verify(session: SparkSession, query: _Query, request: RescaleRequest) -> None:
    """The peer, too, must have counted every event once."""
    (state,) = session.read.format("statestore").load(str(query.checkpoint)).selectExpr("sum(value.count)", "count(*)").collect()
    expected = sum(epoch.rows for epoch in query.published()) + query.loaded
    if (state[0], state[1]) != (expected, request.workload.keys):
        raise md.Corrupted(
            f"{request.system}: the state counts {state[0]} events of {state[1]} keys, not {expected} of {request.workload.keys}"
        )


def _size(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.stat().st_size
    return found
