"""Epochs as Spark jobs: the one place that builds RDDs.

Every stage of a plan is a stage of one job. The functions are fixed and sent once; only data
differs from epoch to epoch: the control messages. They are in an RDD of their own whose location
preferences are the routing table. The JVM zips them with the shuffled blobs, so that each stage
runs in one Python worker per task, on the preferred executor.

Zipping needs as many control elements as blobs: every task of a stage sends exactly one blob to
each task of the next, so there are as many blobs as tasks, and the control message is followed by
empty ones up to that number.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.core.rdd import _wrap_function
from pyspark.serializers import NoOpSerializer, PairDeserializer

from meander import worker
from meander.epochs.jobs import Places
from meander.errors import Retryable, Unavailable
from meander.on_spark.session import answering
from meander.task.messages import Control, Seen

_HINTS_KEPT = 64
_submitting = answering("did not take the tasks of an epoch")
_RAW = NoOpSerializer()
_PAIRS = PairDeserializer(NoOpSerializer(), NoOpSerializer())  # type: ignore[no-untyped-call]


@dataclass
class Started:
    """An epoch whose first stage is under way."""

    exchanged: Any
    shuffle_id: int
    map_stage: Any | None
    tasks: int

    def is_over(self) -> bool:
        """Whether the first stage has ended, well or not."""
        try:
            return self.map_stage is None or bool(self.map_stage.isCompleted())
        except Py4JError:  # Spark is gone
            return True

    def cancel(self) -> None:
        """Nobody waits for it any more. Where Spark is gone it has ended by itself, without effect."""
        if self.map_stage is not None:
            with contextlib.suppress(Py4JError):
                self.map_stage.cancel()


class SparkJobs:
    """Runs control messages as Spark jobs. Not shared between threads."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        jvm = context._jvm
        assert jvm is not None
        self._scala_context = context._jsc.sc()
        self._any = jvm.scala.reflect.ClassTag.Any()
        # Looked up once: every dot of a class's name is a call into the JVM.
        self._array_list, self._collections, self._hash_map = jvm.java.util.ArrayList, jvm.java.util.Collections, jvm.java.util.HashMap
        self._python_utils, self._python_rdd, self._pairwise_rdd = jvm.PythonUtils, jvm.PythonRDD, jvm.PairwiseRDD
        self._partitioner, self._collection_rdd = jvm.PythonPartitioner, jvm.org.apache.spark.rdd.ParallelCollectionRDD
        self._milliseconds = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        self._functions: dict[str, Any] = {}
        self._hints: dict[tuple[str | tuple[str, ...], ...], Any] = {}
        self._shuffles: list[int] = []
        self._current: Any = None

    # -- building ------------------------------------------------------------------------------------------------

    @_submitting
    def start_first_stage(self, controls: Sequence[Control], slots: int, among: Sequence[str] = ()) -> Started:
        """Build the first stage and its exchange, and submit it, ahead of the job that needs it. Its tasks run among some places."""
        located = self._located(controls, 1, _each_of(among, len(controls)))
        exchanged, shuffle_id = self._exchange(self._stage(worker.first_stage, located, _RAW), slots)
        map_stage = self._scala_context.submitMapStage(exchanged.rdd().dependencies().head())
        return Started(exchanged, shuffle_id, map_stage, len(controls))

    @_submitting
    def run_rest(self, started: Started, levels: Sequence[Sequence[Control]], places: Places) -> Callable[[], list[Seen]]:
        """Submit the other levels, each pinned to its places. Returns at once; the result waits for the job."""
        exchanged, senders = started.exchanged, started.tasks
        for number, controls in enumerate(levels):
            values = self._python_rdd.valueOfPair(exchanged)
            zipped = values.zip(self._located(controls, senders, places[controls[0].level]))
            last = number == len(levels) - 1
            stage = self._stage(worker.last_stage if last else worker.next_stage, zipped, _PAIRS)
            if last:
                return self._collect(stage)
            exchanged, _ = self._exchange(stage, len(levels[number + 1]))
            senders = len(controls)
        raise AssertionError("an epoch with an exchange has a level after it")

    @_submitting
    def run_single(self, controls: Sequence[Control], among: Sequence[str] = ()) -> Callable[[], list[Seen]]:
        """A flow without state: one stage, whose tasks run on some of the given places."""
        return self._collect(self._stage(worker.only_stage, self._located(controls, 1, _each_of(among, len(controls))), _RAW))

    def run_pinned(self, function: Callable[..., Any], messages: Sequence[Any], places: Sequence[str], patience: float) -> list[Any]:
        """Something that is no epoch: one task per message, each at its place. Retryable where it fails, or is not done in time."""
        return self._collect(self._stage(function, self._located(messages, 1, places), _RAW), patience)()

    def run_rehearsal(
        self, send: Callable[..., Any], receive: Callable[..., Any], senders: Sequence[str], receivers: Sequence[str], patience: float
    ) -> None:
        """Two stages with an exchange between them, without anything of an epoch in it. Retryable like ``run_pinned``."""
        sent = self._stage(send, self._located([len(receivers)] * len(senders), 1, senders), _RAW)
        values = self._python_rdd.valueOfPair(self._exchange(sent, len(receivers))[0])
        zipped = values.zip(self._located([0] * len(receivers), len(senders), receivers))
        try:
            self._collect(self._stage(receive, zipped, _PAIRS), patience)()
        finally:
            self.forget_shuffles()

    @_submitting
    def run_small(self, levels: Sequence[Sequence[Control]], places: Places) -> Callable[[], list[Seen]]:
        """A small epoch: the first two levels in one stage, without an exchange between them."""
        first = self._located(levels[0], 1, places[levels[0][0].level])
        if len(levels) == 1:
            return self._collect(self._stage(worker.small_last_stage, first, _RAW))
        exchanged, shuffle_id = self._exchange(self._stage(worker.small_next_stage, first, _RAW), len(levels[1]))
        return self.run_rest(Started(exchanged, shuffle_id, None, len(levels[0])), levels[1:], places)

    def cancel(self) -> None:
        """Nobody waits any more for the job that was submitted last."""
        if self._current is not None:
            with contextlib.suppress(Py4JError):
                self._current.cancel(True)

    def forget_shuffles(self, keep: Sequence[int | None] = ()) -> None:
        """Remove the shuffle files of finished epochs now, not at the JVM's next full collection.

        An epoch that is committed does not fail for that: a Spark that is gone has no files, and the next epoch says that it is.
        """
        with contextlib.suppress(Py4JError):
            cleaner = self._scala_context.cleaner()
            for shuffle_id in [s for s in self._shuffles if s not in keep]:
                self._shuffles.remove(shuffle_id)
                if cleaner.isDefined():
                    cleaner.get().doCleanupShuffle(shuffle_id, False)

    # -- pieces --------------------------------------------------------------------------------------------------

    def _stage(self, function: Callable[..., Any], parent: Any, deserializer: Any) -> Any:
        name = function.__name__
        if name not in self._functions:
            self._functions[name] = _wrap_function(self._context, function, deserializer, _RAW)
        return self._python_rdd(parent.rdd(), self._functions[name], False, False).asJavaRDD()

    def _exchange(self, stage: Any, slots: int) -> tuple[Any, int]:
        pairs = self._pairwise_rdd(stage.rdd()).asJavaPairRDD()
        exchanged = pairs.partitionBy(self._partitioner(slots, 0))
        shuffle_id = exchanged.rdd().dependencies().head().shuffleId()
        self._shuffles.append(shuffle_id)
        return exchanged, shuffle_id

    def _located(self, controls: Sequence[Any], elements: int, places: Sequence[str | tuple[str, ...]]) -> Any:
        """One partition per control message, with a preference for a place: the routing table as Spark sees it."""
        messages = self._array_list()
        padding = self._collections.nCopies(elements - 1, bytearray()) if elements > 1 else None
        for control in controls:
            messages.add(bytearray(pickle.dumps(control, protocol=5)))
            if padding is not None:
                messages.addAll(padding)
        data = self._python_utils.toSeq(messages)
        located = self._collection_rdd(self._scala_context, data, len(controls), self._preferences(len(controls), places), self._any)
        return located.toJavaRDD()

    def _preferences(self, count: int, places: Sequence[str | tuple[str, ...]]) -> Any:
        """One place per task, or several that are as good as each other."""
        wanted = tuple(places[i % len(places)] for i in range(count)) if places else ()
        if wanted not in self._hints:
            if len(self._hints) >= _HINTS_KEPT:
                self._hints.clear()
            preferences = self._hash_map()
            for index, place in enumerate(wanted):
                one = self._array_list()
                for hint in (place,) if isinstance(place, str) else place:
                    one.add(hint)
                preferences.put(index, self._python_utils.toSeq(one))
            self._hints[wanted] = self._python_utils.toScalaMap(preferences)
        return self._hints[wanted]

    def _collect(self, stage: Any, patience: float | None = None) -> Callable[[], list[Any]]:
        future = stage.collectAsync()
        if patience is None:
            self._current = future

        def result() -> list[Any]:
            try:
                if patience is None:
                    found = future.get()
                else:
                    try:
                        found = future.get(int(patience * 1000), self._milliseconds)
                    finally:
                        future.cancel(True)  # nothing where it is done
                # By number: the end of a Java iterator is an exception, which PySpark takes 40 ms to classify.
                return [pickle.loads(bytes(found.get(i))) for i in range(found.size())]
            except (Py4JJavaError, Py4JError) as error:
                raise failure_of(_messages(error)) from error

        return result


def _each_of(among: Sequence[str], tasks: int) -> list[tuple[str, ...]]:
    return [tuple(among)] * tasks if among else []


def _messages(error: Py4JError) -> list[str]:
    """The messages of all exceptions in the Java chain, the outermost first: the outer ones say
    only that there is an inner one."""
    found: list[str] = []
    cause = getattr(error, "java_exception", None)
    while cause is not None and len(found) < 20:
        found.append(str(cause.getMessage() or cause.getClass().getName()))
        cause = cause.getCause()
    return found or [str(error)]


def failure_of(messages: Sequence[str]) -> Retryable:
    """The error for a failed job. If a store did not answer a task, the job may succeed later;
    other failures may not go away.

    >>> failure_of(["Traceback (most recent call last):\\n  …\\nmeander.errors.Unavailable: store s3://b/x: 'log/1': 503 Slow Down"])
    Unavailable("a task had no answer: store s3://b/x: 'log/1': 503 Slow Down")
    """
    # Search all of the text: Unavailable is raised from an error of the system, whose traceback
    # comes first, and reason_of reads only that one.
    away = re.findall(r"^(?:meander\.errors\.)?Unavailable: (.*)", "\n".join(messages), re.MULTILINE)
    return Unavailable(f"a task had no answer: {away[-1]}") if away else Retryable(f"a Spark job failed: {reason_of(messages)}")


def reason_of(messages: Sequence[str]) -> str:
    """The reason, from the best source there is: the user's Python code, the stage that failed, or
    the innermost exception."""
    text = "\n".join(messages)
    traceback = re.search(r"Traceback \(most recent call last\):.*?(?=\n\s*\n|\n\s*at |\Z)", text, re.DOTALL)
    if traceback:
        return traceback.group(0).strip()
    stage = re.search(r"Task (\d+) in stage (\d+)\.\d+ failed (\d+) times?", text)
    if "Python worker exited unexpectedly" in text:
        where = f" in stage {stage[2]}, task {stage[1]}, {stage[3]} times in a row" if stage else ""
        return (
            f"a Python worker exited unexpectedly (crashed){where}; a function that ends its process, runs out of memory or crashes in "
            "native code does that"
        )
    recent = re.search(r"most recent failure: (.*)", text)
    if stage and recent:
        return f"task {stage[1]} of stage {stage[2]} failed {stage[3]} times, the last time with: {recent[1][:2000]}"
    known = [message for message in messages if message != "Exception thrown by job"]
    return next((line for line in (known or messages)[-1].splitlines() if line.strip()), text)[:2000]
