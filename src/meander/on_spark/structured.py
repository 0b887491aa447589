"""Drives the loop: directly, or by Structured Streaming through ``foreachBatch``.

With a ``spark_stream`` source Spark chooses the input, so that every source it can read works. Each of its batches becomes one epoch:

1. Spark writes the batch as Parquet into the store's inbox. From here on its rows have fixed splits and positions, however Spark
   partitions the batch when it computes it again.
2. The epoch runs over those files like any other, and commits together with the query's and the batch's id.
3. Only then does the function return, and Spark commits the batch in its own log.

A crash between 2 and 3 makes Spark send the batch again: its id is in the manifest already, with a digest of the range of input that
it is, and it is skipped. Any other repetition, a gap, another range or another query id means that Spark's checkpoint and the store do
not belong together: an error, never a skip.

Stopping must not interrupt a batch: Spark would leave hundreds of lines of stack traces and a
half-written inbox. The batch that runs is finished; if Spark begins another, that one is not run
but waits, in Spark's own thread, for the interruption that ends the query. For Spark this is an end
between two batches, and it sends the batch again after the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException

from meander.connect.source import Split
from meander.connect.spark_stream import SparkStreamSource
from meander.epochs.decision import Decision
from meander.epochs.loop import Loop
from meander.errors import ConfigError, Corrupted, FlowError, Unavailable
from meander.settings import Settings
from meander.state.manifest import Json
from meander.state.stores.contract import Store
from meander.task.physical import Compiled

_SPLIT_ROWS = 1_000_000
_POLL, _PATIENCE = 0.02, 10.0


class Driver(Protocol):
    """The object whose steps a run calls."""

    loop: Loop

    def look(self) -> None:
        """Find all input that is there now: before the steps that ask for everything, once."""

    def step(self, everything: bool, flush: bool = False) -> bool:
        """One piece of work; False where there is none now. ``flush``: close what is open where there is no input."""

    def finished(self) -> bool: ...

    def leave(self) -> None:
        """Stop waiting for a store or sink that does not answer: the flow is about to be stopped.
        From any thread."""

    def stop(self) -> None: ...


class Direct:
    """Meander's own sources: the loop decides."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.look = loop.input.look
        self.step = partial(loop.siblings.persevere, loop.step)
        self.finished = loop.finished
        self.leave = loop.patience.leave

    def stop(self) -> None:
        """Nothing runs between two steps."""


class Structured:
    """A streaming DataFrame: Structured Streaming decides."""

    def __init__(self, loop: Loop, source_name: str, source: SparkStreamSource, store: Store, settings: Settings) -> None:
        self.loop = loop
        self._name = source_name
        self._frame = source.dataframe()
        self._clock_trigger = settings.trigger
        folder = store.local(f"inbox/{source_name}")
        if folder is None:
            raise ConfigError(f"store {store.url}: a spark_stream needs a store that is a folder")
        _refuse_stateful(source_name, self._frame)
        self._inbox = folder
        shutil.rmtree(folder, ignore_errors=True)  # of batches that were never committed: Spark sends them again
        self._checkpoint = str(folder.parent.parent / "spark-checkpoint" / source_name)
        self._query: Any = None
        self._query_id: str | None = None
        self._known = threading.Event()
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._parked = threading.Event()
        """A batch that was not run waits for the query's end."""
        self._batch_thread: threading.Thread | None = None

    def look(self) -> None:
        """Spark asks its source at every batch."""

    def step(self, everything: bool, flush: bool = False) -> bool:
        """Spark runs the batches, in a thread of its own; here runs what is due without one."""
        if everything:
            active = self._query is not None and self._query.isActive
            if not active:
                self._start(availableNow=True)
            # The query's exception wraps our own error: _raise finds the original.
            with contextlib.suppress(StreamingQueryException):
                if active:
                    self._query.processAllAvailable()
                else:
                    self._query.awaitTermination()
            self._raise()
            return self.loop.siblings.persevere(self.loop.step, everything=everything, flush=flush)
        if self._query is None:
            self._start(processingTime=f"{int((self._clock_trigger or 0.0) * 1000)} milliseconds")
        self._raise()
        return self.loop.siblings.persevere(self.loop.step_if_idle)

    def finished(self) -> bool:
        return False

    def leave(self) -> None:
        self._stopping.set()
        self.loop.patience.leave()

    def stop(self) -> None:
        """Finish the batch that runs, then end the query."""
        self._stopping.set()
        if self._query is None:
            return
        if threading.current_thread() is self._batch_thread:  # a listener stops the flow: its own batch must return first
            threading.Thread(target=self._end_query, name="end-of-query", daemon=True).start()
        else:
            self._end_query()

    def _end_query(self) -> None:
        with contextlib.suppress(Py4JError):  # Spark is gone, and the query with it: the other parts of the flow must still be closed
            if self._query.isActive:
                self._end_active()

    def _end_active(self) -> None:
        patience = _PATIENCE
        while self._query.isActive and not self._parked.wait(_POLL):
            if self._batch_thread is not None:
                continue
            patience -= _POLL  # a source that does not answer must not keep a flow from ending
            if patience < 0 or not self._query.status["isTriggerActive"]:
                break
        self._query.stop()

    def _park(self, frame: Any) -> None:
        """Wait for the end of the query, where Spark can interrupt it."""
        sleep = frame.sparkSession._jvm.java.lang.Thread.sleep
        self._parked.set()
        with contextlib.suppress(Py4JJavaError):
            sleep(int(_PATIENCE * 1000))  # in the thread that called us
        # By these words Spark knows an interruption from a failure. The exception's own text has them, too, but is so long that the
        # regular expression which looks for them overflows the thread's stack.
        raise InterruptedError("py4j.protocol.Py4JJavaError: An error occurred while calling sleep: java.lang.InterruptedException")

    def _start(self, **trigger: Any) -> None:
        self._known.clear()
        writer = self._frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", self._checkpoint)
        try:
            self._query = writer.trigger(**trigger).start()
        except Exception as error:
            raise ConfigError(f"source '{self._name}': Structured Streaming cannot start the query: {error}") from error
        self._query_id = str(self._query.id)
        self._known.set()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
        problem = self._query.exception()
        if problem is not None:
            raise ConfigError(f"source '{self._name}': the streaming query failed: {problem}") from problem

    def _batch(self, frame: Any, batch_id: int) -> None:
        """Called by Spark, in a thread of its own, one batch at a time."""
        if self._stopping.is_set():
            self._park(frame)
        self._batch_thread = threading.current_thread()
        try:
            self._known.wait()
            self.loop.requests.perform()
            identity: Json = {"query": self._query_id, "batch": batch_id, "input": input_of(Path(self._checkpoint), batch_id)}
            if self._is_new(identity):
                self._run_batch(frame, identity)
        except Unavailable as error:
            if self._stopping.is_set():  # stopped while it held: Spark sends the batch again after the next start
                self._park(frame)
            self._failure = error
            raise
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._batch_thread = None

    def _is_new(self, identity: Json) -> bool:
        return is_new(self._name, self.loop.log.manifest.batch, identity)

    def _run_batch(self, frame: Any, identity: Json) -> None:
        manifest = self.loop.log.manifest
        folder = self._inbox / f"{manifest.generation:08d}-{identity['batch']:012d}"
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        frame.write.mode("overwrite").option("compression", "lz4_raw").parquet(str(folder))
        now = self.loop.input.now()
        splits = tuple((self._name, split) for split in _splits(folder, now))
        decision = Decision(manifest.epoch + 1, now, splits, {}, batch=identity)
        self.loop.siblings.persevere(lambda: self._is_new(identity) and self.loop.run_epoch(decision))  # held, it may have been committed
        shutil.rmtree(folder, ignore_errors=True)


def is_new(source: str, last: Json | None, batch: Json) -> bool:
    """Whether a batch that Spark sends is new, given the last batch that became an epoch. Corrupted
    if it is neither new nor that one.

    A batch that is sent again has the same id and the same range of input. The same id with another
    range is another batch: Spark's checkpoint has lost its newest batch, for example by a power
    loss, and has made a new one with later input. To skip it would lose rows, and to run it would
    double the rows that both have.
    """
    together = "Spark's checkpoint and the store belong together: use both as they were"
    if last is None:
        if batch["batch"] != 0:
            raise Corrupted(
                f"source '{source}': Spark's checkpoint is at batch {batch['batch']}, but the store has no epoch of this query. "
                f"{together}, or a new store."
            )
        return True
    if batch["query"] != last["query"] or not 0 <= batch["batch"] - last["batch"] <= 1:
        raise Corrupted(
            f"source '{source}': Spark sent batch {batch['batch']} of query {batch['query']}, its last epoch is batch "
            f"{last['batch']} of query {last['query']}. {together}."
        )
    if batch["batch"] == last["batch"] + 1:
        return True
    if batch.get("input") != last.get("input"):
        raise Corrupted(
            f"source '{source}': Spark sent batch {batch['batch']} again, with other input than the epoch that it was: Spark's checkpoint "
            f"has lost its newest batch and made another one. Nothing of it was taken. {together}; or restore both from one backup."
        )
    return False


def input_of(checkpoint: Path, batch: int) -> str | None:
    """A digest of the range of input that a batch is, by Spark's own write-ahead log; None where that cannot be read.

    The log has a version, then what differs from try to try (times, settings), then one line per source. A source of files says there
    only how many lists of files it has made: the list itself is beside it.
    """
    try:
        ranges = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
        lists = [_listed(checkpoint / "sources" / str(number), line) for number, line in enumerate(ranges)]
    except (OSError, ValueError):
        return None
    return hashlib.sha256(json.dumps([ranges, lists]).encode()).hexdigest()[:32]


def _listed(log: Path, offset: str) -> list[str]:
    """The files of a source's newest list, where the offset is the number of one."""
    try:
        found = json.loads(offset)
    except ValueError:  # a source's own form, or one that had nothing yet: the offset says it all
        return []
    number = found.get("logOffset") if isinstance(found, dict) else None
    if number is None:
        return []
    path = log / str(number)
    lines = (path if path.exists() else path.with_name(f"{number}.compact")).read_text().splitlines()[1:]
    return sorted(line for line in lines if json.loads(line).get("batchId") == number)  # one that is compacted has the older ones, too


def _splits(folder: Path, now: float) -> list[Split]:
    """One split per file and about a million rows, in the order of Spark's partitions."""
    splits = []
    for path in sorted(folder.glob("part-*.parquet")):
        footer = pq.read_metadata(path)
        begin = rows = 0
        for group in range(footer.num_row_groups):
            rows += footer.row_group(group).num_rows
            if rows >= _SPLIT_ROWS or (group == footer.num_row_groups - 1 and rows):
                payload = {"path": str(path), "groups": [begin, group + 1]}
                splits.append(Split(payload, rows, os.path.getsize(path), (now, now)))
                begin, rows = group + 1, 0
    return splits


def _refuse_stateful(name: str, frame: Any) -> None:
    """State must be in one place: state inside Spark's query would not be rescaled, changed or
    recovered with the flow."""
    stack = [frame._jdf.queryExecution().analyzed()]
    while stack:
        node = stack.pop()
        kind = str(node.nodeName())
        children = node.children()
        below = [children.apply(i) for i in range(children.size())]
        streaming = [child for child in below if child.isStreaming()]
        stateful = kind in ("Aggregate", "Distinct", "GlobalLimit") or kind.startswith(("Deduplicate", "FlatMapGroups", "TransformWith"))
        if (stateful and streaming) or (kind == "Join" and len(streaming) > 1):
            raise FlowError(
                f"source '{name}': the streaming DataFrame has a stateful operator of Spark's own ({kind}); "
                "write it as a Meander operator behind the source (key_by(...).aggregate(...))"
            )
        stack.extend(streaming)


def drive(loop: Loop, compiled: Compiled, store: Store, settings: Settings) -> Driver:
    """The driver for a flow's sources."""
    streams = {name: op.source for name, op in compiled.sources.items() if isinstance(op.source, SparkStreamSource)}
    if not streams:
        return Direct(loop)
    if len(compiled.sources) > 1:
        others = ", ".join(sorted(compiled.sources))
        raise FlowError(f"a flow with a spark_stream has no other source, since Spark drives it; this one has {others}")
    ((name, source),) = streams.items()
    return Structured(loop, name, source, store, settings)
