"""The functions that Spark's Python workers run, and all that one of them holds from task to task.

The functions at the end travel by name: each finds its process's ``Worker`` by ``Worker.here()``. In tests a run has one of its own.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from meander.cache.open_segments import OpenSegments
from meander.cache.reader import Cached, ExecutorCache, Mapped, Owned, Remote
from meander.cache.tables import OpenTables
from meander.clock import Clock, SystemClock
from meander.coordinate.routing import groups_of
from meander.errors import BadInput, Corrupted, FlowError, Retryable
from meander.state.manifest import operator_of
from meander.state.stores.contract import Store, open_store
from meander.task.exchange import receive, send
from meander.task.messages import Common, Control, Report, Seen
from meander.task.operators.contract import Partial
from meander.task.physical import CompiledPlans
from meander.task.stage import Carried, Outbox, Segments, StageTask

_NOTHING = Seen(frozenset(), ())
Pairs = Iterable[tuple[bytes, bytes]]


class Worker:
    """One Python worker process: stores, caches, tables and plans that stay open from task to task, and the clock of its tasks."""

    _here: ClassVar[Worker | None] = None

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.stores: dict[str, Store] = {}
        """Opened once each, by URL."""
        self.executor_caches: dict[str, ExecutorCache] = {}
        """That of the run which was worked for last, by the run's secret."""
        self.plans = CompiledPlans()
        self.tables = OpenTables()
        self.segments = OpenSegments()
        self._spared = 0
        """Modules at the time when what they hold was last taken out of the garbage collector's sight."""

    @classmethod
    def here(cls) -> Worker:
        """This process's. Made by its first task, and not by an import: PySpark's daemon imports, and forks workers."""
        if Worker._here is None:
            Worker._here = Worker()
        return Worker._here

    # -- stages ---------------------------------------------------------------------------------------------------

    def first_stage(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """Level 0 of an epoch with an exchange: alternates slot numbers (8 bytes) and blobs, as Spark's pairwise shuffle wants them."""
        task, box = self._open_task(_only(messages)), Outbox()
        yield from _send(task, box, self._guarded(_NOTHING, box, task, work=lambda: task.run_sources(box)))

    def next_stage(self, messages: Pairs) -> Iterator[bytes]:
        """A level between two exchanges."""
        yield from _send(*self._run_state(messages))

    def last_stage(self, messages: Pairs) -> Iterator[bytes]:
        """The last level: what comes out is for the driver."""
        task, _box, seen = self._run_state(messages)
        yield _result(task, seen)

    def only_stage(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """The whole epoch of a flow without state: one level, no exchange."""
        task, box = self._open_task(_only(messages)), Outbox()
        yield _result(task, self._guarded(_NOTHING, box, task, work=lambda: task.run_sources(box)))

    def small_last_stage(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """The first two levels of a small epoch in one task, where the second is the last."""
        task, _box, seen = self._run_small(_only(messages))
        yield _result(task, seen)

    def small_next_stage(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """The first two levels of a small epoch in one task, with more to come."""
        yield from _send(*self._run_small(_only(messages)))

    def settle_in(self, common: Common) -> tuple[Store, ExecutorCache | None]:
        """Open the store for the tasks of a run and, where segments are not mapped from it, this executor's cache. Opened once."""
        store = self.stores[common.store] = self.stores.get(common.store) or open_store(common.store)
        maps = common.mode == "hybrid" and store.local("") is not None
        return store, None if maps else self._executor_cache(common)

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _open_task(self, message: bytes) -> StageTask:
        control: Control = pickle.loads(message)
        common = control.common
        store, executor_cache = self.settle_in(common)

        def find_segments(report: Report) -> Segments:
            if executor_cache is None:
                return Mapped(store, self.segments)
            report.executor, report.steward = executor_cache.executor, executor_cache.address()
            if common.mode == "remote":
                return Remote(store, report)
            groups = 0
            for name in control.segments:
                groups |= groups_of(common.routing[operator_of(name)], control.index)
            owned = Owned(groups, common.key_groups, holders=control.holders, secret=common.secret, whole=common.mode == "local")
            return Cached(store, executor_cache.cache, owned, opened=self.segments, report=report)

        plan = self.plans.unpack(common.plan)
        self.tables.lend(plan, common.tables, store, executor_cache)
        self.spare_imports()
        return StageTask(plan, control, store, find_segments, self.clock)

    def spare_imports(self) -> None:
        """Keep what modules hold out of garbage collection, whenever there are new ones.

        PySpark collects after every task, and a collection looks at every object: with everything imported that took a third of an
        epoch's processor time.
        """
        if len(sys.modules) != self._spared:
            gc.collect()
            gc.freeze()
            self._spared = len(sys.modules)

    def _executor_cache(self, common: Common) -> ExecutorCache:
        if common.secret not in self.executor_caches:
            self.executor_caches.clear()
            self.executor_caches[common.secret] = ExecutorCache(common.store, common.secret, common.key_groups, clock=self.clock)
        return self.executor_caches[common.secret]

    def _run_state(self, messages: Pairs) -> tuple[StageTask, Outbox, Seen]:
        """The control message comes with the first blob; the others are beside empty ones."""
        pairs = list(messages)
        task = self._open_task(next(message for _, message in pairs if message))
        began = task.clock.monotonic()
        found = receive((raw for raw, _ in pairs), task.report.task[0])
        task.report.seconds["exchange"] = task.clock.monotonic() - began
        box = found.passing
        return task, box, self._guarded(found.seen, box, task, work=lambda: task.run_state(found.partials, found.carried, box))

    def _run_small(self, message: bytes) -> tuple[StageTask, Outbox, Seen]:
        task = self._open_task(message)
        first, box = Outbox(), Outbox()
        common, (level, index) = task.control.common, task.report.task
        owned = {name: groups_of(common.routing[name], index) for name in task.compiled.levels[1].keyed}

        def work() -> None:
            task.run_sources(first, owned)
            partials: list[Partial] = []
            carried: list[Carried] = []
            for partial in first.partials:
                (partials if task.compiled.keyed[partial.operator].level == level else box.partials).append(partial)
            for item in first.carried:
                (carried if item.level == level else box.carried).append(item)
            task.run_state(partials, carried, box)

        return task, box, self._guarded(_NOTHING, box, task, work=work)

    def _guarded(self, seen: Seen, box: Outbox, task: StageTask, *, work: Callable[[], None]) -> Seen:
        """Do the work. An error that trying again would not mend travels to the driver as data, past Spark's retries.

        On probation that is every error but one of the machinery's, and whoever wrote the code is shown where it came from.
        """
        watched = task.control.common.watched
        if seen.error is None:
            try:
                with _undone_if_it_fails(task):
                    self._open_tables(task)
                    work()
            except (BadInput, Corrupted, FlowError) as error:
                box.partials.clear()
                box.carried.clear()
                text = f"{error}\n{traceback.format_exc()}" if watched else str(error)
                return replace(seen, error=(type(error).__name__, text))
            except Exception as error:
                if not watched or isinstance(error, Retryable | OSError):
                    raise
                box.partials.clear()
                box.carried.clear()
                return replace(seen, error=("BadInput", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        return seen

    def _open_tables(self, task: StageTask) -> None:
        """Those of the levels that a task does the work of: the first stage is part of the second in a small epoch."""
        for number in {0, task.control.level} if task.control.splits else {task.control.level}:
            self.tables.open(node.name for node in task.compiled.levels[number].stateless)


def _only(messages: Iterable[bytes]) -> bytes:
    """The one control message of a partition. Drains the input: a worker whose input is not drained cannot be used again."""
    (message,) = list(messages)
    return message


@contextlib.contextmanager
def _undone_if_it_fails(task: StageTask) -> Iterator[None]:
    try:
        yield
    except BaseException:
        task.discard()
        raise


def _finished(task: StageTask) -> Report:
    with _undone_if_it_fails(task):
        return task.finish()


def _result(task: StageTask, seen: Seen) -> bytes:
    report = _finished(task)
    return pickle.dumps(Seen(seen.tokens | {(report.task, report.nonce)}, (*seen.reports, report), seen.error), protocol=5)


def _send(task: StageTask, box: Outbox, seen: Seen) -> Iterator[bytes]:
    return send(task.compiled, task.control.common, _finished(task), box=box, seen=seen)


# -- by name -----------------------------------------------------------------------------------------------------------


def first_stage(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """See ``Worker.first_stage``, and so on."""
    return Worker.here().first_stage(messages)


def next_stage(_: int, messages: Pairs) -> Iterator[bytes]:
    return Worker.here().next_stage(messages)


def last_stage(_: int, messages: Pairs) -> Iterator[bytes]:
    return Worker.here().last_stage(messages)


def only_stage(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    return Worker.here().only_stage(messages)


def small_last_stage(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    return Worker.here().small_last_stage(messages)


def small_next_stage(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    return Worker.here().small_next_stage(messages)
