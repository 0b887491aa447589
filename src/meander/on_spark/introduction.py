"""Introducing executors to a flow, beside its epochs.

The first Python task on an executor is slow: PySpark's daemon starts, a worker is forked and
imports Polars, Arrow and this package, the store is opened, the steward starts. An epoch with a
task on such an executor would take seconds. So an executor is *introduced* first: one small task
per core, pinned there, does all of that, started by a thread of the driver that no epoch waits for.
Then it takes part in an exchange with others, for which its JVM loads classes and connects.
``Placement`` uses only introduced executors for slots and source tasks, as long as there are any.

An introduction wears off: PySpark ends workers that were idle for a minute. An executor without
slots is introduced again before that. An executor that does not see the store is never introduced,
and the log says why.
"""

from __future__ import annotations

import logging
import pickle
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark import SparkContext

from meander.cache.reader import this_executor
from meander.cache.tables import bring
from meander.clock import Clock
from meander.epochs.placement import Executor, Placement
from meander.errors import MeanderError, Retryable
from meander.on_spark.jobs import SparkJobs
from meander.on_spark.probe import AWAY, look, put_probe
from meander.state.stores.contract import Store
from meander.task.messages import Common
from meander.worker import Worker

_LOG = logging.getLogger("meander")
_LOOK_EVERY = 1.0
_AGAIN_AFTER = 5.0
_PATIENCE = 60.0
_SAY_AFTER = 3
_STEWARD = 10.0
_REHEARSED = 1000
_PARTNERS = 4
_FORGOTTEN_AFTER = 40.0
"""Seconds; PySpark's own limit is a minute, and is looked at every ten seconds."""


@dataclass(frozen=True)
class Hello:
    """The message of the driver to an executor that is introduced."""

    common: Common
    probe: str
    """A name in the store that it must be able to read."""


@dataclass(frozen=True)
class Answer:
    """The answer of one of its workers."""

    executor: str | None
    """Where it ran, which need not be where it should have; None where the system does not tell."""
    seen: bytes
    steward: str | None


def introduce(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """Runs in a worker. To call this function imports everything that epochs need; the store that
    is opened here stays open for them."""
    (message,) = list(messages)
    hello: Hello = pickle.loads(message)
    worker = Worker.here()
    store, executor_cache = worker.settle_in(hello.common)
    worker.plans.unpack(hello.common.plan)  # which imports what the user's functions need
    bring(hello.common.tables, store, executor_cache)
    steward = None if executor_cache is None else executor_cache.wait_for_steward(_STEWARD)
    yield pickle.dumps(Answer(this_executor(), look(store, hello.probe), steward), protocol=5)


def rehearse_sending(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """In a worker: something for everyone, in the form of an exchange."""
    (message,) = list(messages)
    for receiver in range(pickle.loads(message)):
        yield struct.pack("!q", receiver)
        yield bytes(_REHEARSED)


def rehearse_receiving(_: int, messages: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    yield pickle.dumps(sum(len(blob) for blob, _ in messages))


class Introducer:
    """Introduces the executors of one run: those that are there when it starts, and then whoever joins."""

    def __init__(
        self, context: SparkContext, placement: Placement, store: Store, common: Common, clock: Clock, met: Callable[[str, str], None]
    ) -> None:
        self._context, self._placement, self._store, self._common, self._clock, self._met = context, placement, store, common, clock, met
        self._known: dict[str, float] = {}
        """When each was introduced."""
        self._tried: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        self._complained: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meander-introductions", daemon=True)

    def start(self) -> Introducer:
        """Introduce who is there, all at once, and then go on in the background."""
        self._round(SparkJobs(self._context))
        self._thread.start()
        return self

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_LOOK_EVERY)  # one that is under way ends by itself; nothing depends on it

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        jobs = SparkJobs(self._context)
        while not self._stop.wait(_LOOK_EVERY):
            try:
                self._round(jobs)
            except Exception:  # Spark is stopping, or lost what it ran; a flow whose Spark is gone hears of it from its epochs
                if self._stop.is_set():
                    return

    def _round(self, jobs: SparkJobs) -> None:
        now, there = self._clock.monotonic(), self._placement.look()
        there.pop("driver", None)  # all that is left where no executor is: it runs nothing
        self._known = {name: at for name, at in self._known.items() if name in there}
        at_work = {name for slots in self._placement.where().values() for name in slots}
        due = {
            name: executor
            for name, executor in there.items()
            if now - self._known.get(name, -_FORGOTTEN_AFTER) >= _FORGOTTEN_AFTER
            and (name not in at_work or name not in self._known)
            and now - self._tried.get(name, -_AGAIN_AFTER) >= _AGAIN_AFTER
        }
        if due:
            self._tried = {name: at for name, at in self._tried.items() if name in there} | dict.fromkeys(due, now)
            self._introduce(jobs, due, there)
        self._placement.introduced(self._known)

    def _introduce(self, jobs: SparkJobs, executors: Mapping[str, Executor], there: Mapping[str, Executor]) -> None:
        try:
            probe, content = put_probe(self._store, self._clock)
        except Retryable:
            return  # a store that does not answer: later
        names = [name for name, executor in executors.items() for _ in range(max(1, executor.cores))]
        places = [executors[name].hint for name in names]
        others = [executor.hint for name, executor in there.items() if name in self._known and name not in executors]
        try:
            answers: list[Answer] = jobs.run_pinned(introduce, [Hello(self._common, probe)] * len(places), places, _PATIENCE)
            jobs.run_rehearsal(rehearse_sending, rehearse_receiving, [*places, *others[:_PARTNERS]], places, _PATIENCE)
        except (Retryable, Py4JError) as error:  # it died, or is too busy: tried again, as long as it is there
            for name in executors:
                self._failed[name] = self._failed.get(name, 0) + 1
                if self._failed[name] == _SAY_AFTER:
                    _LOG.warning(f"executor {name} cannot be introduced, and gets no work while there are others: {error}")
            return
        finally:
            self._remove(probe)
        for wanted, answer in zip(names, answers, strict=True):
            name = answer.executor or wanted
            if name not in executors:
                continue
            if answer.seen.startswith(AWAY):
                continue  # its store did not answer: later
            if answer.seen != content:
                self._complain(name, answer.seen)
                continue
            self._known[name] = self._clock.monotonic()
            if answer.steward is not None:
                self._met(name, answer.steward)

    def _remove(self, probe: str) -> None:
        try:
            self._store.delete(probe)
        except MeanderError:
            return  # the next start sweeps

    def _complain(self, executor: str, seen: bytes) -> None:
        if executor in self._complained:
            return
        self._complained.add(executor)
        instead = f" ({seen.decode(errors='replace')})" if seen else ""
        _LOG.warning(
            f"executor {executor} does not see what the driver writes to store {self._store.url}{instead}: it gets no work "
            "while there are others. Give its machine the same store."
        )
