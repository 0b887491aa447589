"""Spark's own way to another function or condition: stop the query, and start the changed one from its checkpoint.

``spark-restart`` is what deploying a changed job is: the application ends, and another one starts. It starts as soon as the query has
stopped, while the old application is still ending. ``spark-in-session`` stops the query and starts the changed one in the same session,
which is as quick as Spark can be, for drivers that were written to load new code while they run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from meander.bench.harness.isolation import Progress
from meander.bench.harness.peers import peer_settings
from meander.bench.harness.statistics import Json
from meander.bench.load.steady import batch_name, saver
from meander.bench.modify.ours import Load
from meander.bench.modify.request import ModifyRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_COLUMNS = "key long, born double"
_STOPPED = b"stopped\n"


@dataclass(frozen=True)
class _Job:
    """The job: whether its function is the new one, and its conditions."""

    new: bool
    conditions: tuple[str, ...]


_FIRST = _Job(False, ("key >= 0",))
_STEPS = {
    "replace": _Job(True, ("key >= 0",)),
    "filter": _Job(True, ("key >= 0 and born > 1",)),
    "insert": _Job(True, ("key >= 0 and born > 1", "key < 1000000000000")),
    "remove": _Job(True, ("key >= 0 and born > 1",)),
}


class _Runner(Protocol):
    """Something that runs one job at a time."""

    def start(self, job: _Job) -> None: ...

    def alive(self) -> bool: ...

    def stop(self) -> None:
        """Returns when the next job can start."""

    def close(self) -> None: ...


def run(request: ModifyRequest, progress: Progress) -> Json:
    """Four restarts: with another function, with another condition, with one more operator, and without it."""
    load = Load(request, first=0, names=lambda number: [batch_name(number)])
    runner: _Runner = (
        _InSession(request, load.feed.folder) if request.system == "spark-in-session" else _Application(request, load.feed.folder)
    )
    try:
        runner.start(_FIRST)
        load.start()
        load.await_output(0.0, runner.alive)
        progress("warming up")
        time.sleep(request.warmup)
        for name, job in _STEPS.items():
            progress(name)
            began = time.time()
            time.sleep(request.seconds)
            asked = time.time()
            runner.stop()
            stopped = time.time()
            runner.start(job)
            load.changes.append({"change": name, "began": began, "asked": asked, "in_force": load.await_output(stopped, runner.alive)})
        time.sleep(request.seconds)
        found = load.answer()
        runner.stop()
        return found
    finally:
        runner.close()


class _InSession:
    """Queries of one session, one after the other."""

    def __init__(self, request: ModifyRequest, feed: Path) -> None:
        self._request, self._feed = request, feed
        self._session = _session(request)

    def start(self, job: _Job) -> None:
        self._query = _query(self._session, self._request, self._feed, job)

    def alive(self) -> bool:
        return bool(self._query.isActive)

    def stop(self) -> None:
        self._query.stop()

    def close(self) -> None:
        self._session.stop()


class _Application:
    """A process for every job; it stops its query on request and confirms it."""

    def __init__(self, request: ModifyRequest, feed: Path) -> None:
        self._request, self._feed = request, feed
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, job: _Job) -> None:
        words = [
            sys.executable,
            "-m",
            __name__,
            json.dumps({"request": asdict(self._request), "feed": str(self._feed), "job": asdict(job)}),
        ]
        self._started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def alive(self) -> bool:
        return self._started[-1].poll() is None

    def stop(self) -> None:
        process = self._started[-1]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        while (line := process.stdout.readline()) != _STOPPED:  # Spark, too, may print something
            if not line:
                raise ChildProcessError("Spark's application ended without having stopped its query; see the log")

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


def _application(asked: Json) -> None:
    request = ModifyRequest.from_json(asked["request"])
    session = _session(request)
    query = _query(session, request, Path(asked["feed"]), _Job(asked["job"]["new"], tuple(asked["job"]["conditions"])))
    sys.stdin.read()
    query.stop()
    sys.stdout.write(_STOPPED.decode())
    sys.stdout.flush()
    session.stop()


def _session(request: ModifyRequest) -> SparkSession:
    from pyspark.sql import SparkSession  # only measuring processes pay for this

    settings: dict[str, Any] = peer_settings("spark-rocksdb", request.parallelism, request.memory)
    session = SparkSession.builder.master(request.master).appName(request.system).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _query(session: SparkSession, request: ModifyRequest, feed: Path, job: _Job) -> StreamingQuery:
    from pyspark.sql import functions as F

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def other(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(batch.column("born").is_valid())

    folder = Path(request.folder)
    events = session.readStream.schema(_COLUMNS).parquet(str(feed)).mapInArrow(other if job.new else same, _COLUMNS)
    for condition in job.conditions:
        events = events.where(condition)
    counts = events.groupBy("key").agg(F.count("*").alias("n"), F.max("born").alias("born"))
    writer = counts.writeStream.outputMode("update").foreachBatch(saver(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(processingTime=f"{round(request.trigger * 1000)} milliseconds").start()


if __name__ == "__main__":
    _application(json.loads(sys.argv[1]))
