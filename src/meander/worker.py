"""What Spark's Python workers run: functions that travel by name, and the wire format between two stages.

Between stages a task sends one blob to every task of the next level: the tokens of all attempts it descends from, and what is
meant for that task or must pass through it. Even an empty message is sent, since the tokens are how the
driver learns that all consumers saw the same attempts.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from meander.cache.reader import Cached, ExecutorCache, Mapped, Remote
from meander.cache.tables import OpenTables
from meander.clock import SystemClock
from meander.coordinate.routing import groups_of
from meander.errors import BadInput, Corrupted, FlowError, Retryable
from meander.state.hashing import key_group_bounds
from meander.state.manifest import operator_of
from meander.state.segment import HASH, to_arrow
from meander.state.stores.contract import Store, open_store
from meander.task.messages import Common, Control, Report, Seen, Task
from meander.task.operators.contract import Partial
from meander.task.physical import unpack_plan
from meander.task.rows import Rows
from meander.task.stage import Carried, Outbox, Segments, StageTask

_stores: dict[str, Store] = {}
_executor_caches: dict[str, ExecutorCache] = {}
_tables = OpenTables()
_NOTHING = Seen(frozenset(), ())
_spared = 0
"""Modules at the time when what they hold was last taken out of the garbage collector's sight."""


def first_stage(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """Level 0 of an epoch with an exchange: alternates slot numbers (8 bytes) and blobs, as Spark's pairwise shuffle wants them."""
    task, box = _open_task(_only(messages)), Outbox()
    yield from _send(task, box, _guarded(_NOTHING, box, task, lambda: task.run_sources(box)))


def next_stage(_: int, messages: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """A level between two exchanges."""
    yield from _send(*_run_state(messages))


def last_stage(_: int, messages: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The last level: what comes out is for the driver."""
    task, _box, seen = _run_state(messages)
    yield _result(task, seen)


def only_stage(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """The whole epoch of a flow without state: one level, no exchange."""
    task, box = _open_task(_only(messages)), Outbox()
    yield _result(task, _guarded(_NOTHING, box, task, lambda: task.run_sources(box)))


def small_last_stage(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """The first two levels of a small epoch in one task, where the second is the last."""
    task, _box, seen = _run_small(_only(messages))
    yield _result(task, seen)


def small_next_stage(_: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """The first two levels of a small epoch in one task, with more to come."""
    yield from _send(*_run_small(_only(messages)))


def _only(messages: Iterable[bytes]) -> bytes:
    """The one control message of a partition. Drains the input: a worker whose input is not drained cannot be used again."""
    (message,) = list(messages)
    return message


def _guarded(seen: Seen, box: Outbox, task: StageTask, work: Callable[[], None]) -> Seen:
    """Do the work. An error that trying again would not mend travels to the driver as data, past Spark's retries.

    On probation that is every error but one of the machinery's, and whoever wrote the code is shown where it came from.
    """
    watched = task.control.common.watched
    if seen.error is None:
        try:
            with _undone_if_it_fails(task):
                _open_tables(task)
                work()
        except (BadInput, Corrupted, FlowError) as error:
            box.partials.clear()
            box.carried.clear()
            told = f"{error}\n{traceback.format_exc()}" if watched else str(error)
            return replace(seen, error=(type(error).__name__, told))
        except Exception as error:
            if not watched or isinstance(error, Retryable | OSError):
                raise
            box.partials.clear()
            box.carried.clear()
            return replace(seen, error=("BadInput", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    return seen


def _open_tables(task: StageTask) -> None:
    """Those of the levels that a task does the work of: the first stage is part of the second in a small epoch."""
    for number in {0, task.control.level} if task.control.splits else {task.control.level}:
        _tables.open(node.name for node in task.compiled.levels[number].stateless)


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


def _open_task(message: bytes) -> StageTask:
    control: Control = pickle.loads(message)
    common = control.common
    store, executor_cache = settle_in(common)

    def find_segments(report: Report) -> Segments:
        if executor_cache is None:
            return Mapped(store)
        report.executor, report.steward = executor_cache.executor, executor_cache.address()
        if common.mode == "remote":
            return Remote(store, report)
        groups = 0
        for name in control.segments:
            groups |= groups_of(common.routing[operator_of(name)], control.index)
        return Cached(store, executor_cache.cache, common.mode, groups, common.key_groups, control.holders, common.secret, report)

    plan = unpack_plan(common.plan)
    _tables.lend(plan, common.tables, store, executor_cache)
    _spare_imports()
    return StageTask(plan, control, store, find_segments, SystemClock())


def _spare_imports() -> None:
    """Keep what modules hold out of garbage collection, whenever there are new ones.

    PySpark collects after every task, and a collection looks at every object: with everything imported that took a third of an
    epoch's processor time.
    """
    global _spared
    if len(sys.modules) != _spared:
        gc.collect()
        gc.freeze()
        _spared = len(sys.modules)


def _executor_cache(common: Common) -> ExecutorCache:
    if common.secret not in _executor_caches:
        _executor_caches.clear()
        _executor_caches[common.secret] = ExecutorCache(common.store, common.secret, common.key_groups)
    return _executor_caches[common.secret]


def settle_in(common: Common) -> tuple[Store, ExecutorCache | None]:
    """What the tasks of a run need: the store and, where segments are not mapped from it, this executor's cache. Opened once per worker."""
    store = _stores[common.store] = _stores.get(common.store) or open_store(common.store)
    maps = common.mode == "hybrid" and store.local("") is not None
    return store, None if maps else _executor_cache(common)


def _run_state(messages: Iterable[tuple[bytes, bytes]]) -> tuple[StageTask, Outbox, Seen]:
    """The control message comes with the first blob; the others are beside empty ones."""
    pairs = list(messages)
    task = _open_task(next(message for _, message in pairs if message))
    level, index = task.report.task
    box = Outbox()
    partials: list[Partial] = []
    carried: list[Carried] = []
    tokens: set[tuple[Task, str]] = set()
    reports: list[Report] = []
    failure: tuple[str, str] | None = None
    began = task.clock.monotonic()
    for raw, _ in pairs:
        seen, items = pickle.loads(raw)
        tokens |= seen.tokens
        reports.extend(seen.reports)
        failure = failure or seen.error
        for item in items:
            _receive(task, item, level, index, partials, carried, box)
    task.report.seconds["exchange"] = task.clock.monotonic() - began
    seen = Seen(frozenset(tokens), tuple(reports), failure)
    return task, box, _guarded(seen, box, task, lambda: task.run_state(partials, carried, box))


def _run_small(message: bytes) -> tuple[StageTask, Outbox, Seen]:
    task = _open_task(message)
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

    return task, box, _guarded(_NOTHING, box, task, work)


def _result(task: StageTask, seen: Seen) -> bytes:
    report = _finished(task)
    return pickle.dumps(Seen(seen.tokens | {(report.task, report.nonce)}, (*seen.reports, report), seen.error), protocol=5)


def _send(task: StageTask, box: Outbox, seen: Seen) -> Iterator[bytes]:
    """Address what is in the outbox. The report travels with the blob for slot 0, the tokens with all."""
    report = _finished(task)
    level, index = report.task
    common = task.control.common
    slots = common.slots[level + 1]
    tokens = seen.tokens | {(report.task, report.nonce)}
    items: list[list[Any]] = [[] for _ in range(slots)]
    for partial in box.partials:
        target = task.compiled.keyed[partial.operator].level
        for slot, frame in _cut(partial.frame, common.routing[partial.operator], common.key_groups):
            items[slot % slots].append(("partial", partial.operator, target, slot, partial.unit, _pack(frame), partial.side))
    for item in box.carried:
        rows = item.rows
        slot = (index if rows.unit is None else rows.unit) % common.slots[item.level]
        units = None if rows.units is None else rows.units.tobytes()
        items[slot % slots].append(("rows", item.node, item.level, slot, rows.unit, _pack(rows.frame), units, rows.place, rows.sign))
    for slot in range(slots):
        reports = (*seen.reports, report) if slot == 0 else ()
        yield slot.to_bytes(8, "big")
        yield pickle.dumps((Seen(tokens, reports, seen.error), items[slot]), protocol=5)


def _receive(task: StageTask, item: Any, level: int, index: int, partials: list[Partial], carried: list[Carried], box: Outbox) -> None:
    kind, name, target, _slot, unit, data, *rest = item
    if kind == "partial":
        (side,) = rest
        partial = Partial(name, unit, _unpack(data), side)
        (partials if target == level else box.partials).append(partial)
        return
    units, place, sign = rest
    rows = Rows(_unpack(data), unit, None if units is None else np.frombuffer(units, np.uint64), None, place, sign=sign)
    (carried if target == level else box.carried).append(Carried(name, target, rows))


def _cut(frame: pl.DataFrame, routing: list[int], key_groups: int) -> Iterator[tuple[int, pl.DataFrame]]:
    """Partial states by slot. They are sorted by hash, so that a key group is one run of rows."""
    edges = [0, *np.searchsorted(frame.get_column(HASH).to_numpy(), key_group_bounds(key_groups)).tolist(), frame.height]
    runs: dict[int, list[tuple[int, int]]] = {}
    for group, slot in enumerate(routing):
        begin, end = edges[group], edges[group + 1]
        if begin == end:
            continue
        mine = runs.setdefault(slot, [])
        if mine and mine[-1][1] == begin:
            mine[-1] = (mine[-1][0], end)
        else:
            mine.append((begin, end))
    for slot, pieces in runs.items():
        parts = [frame[a:b] for a, b in pieces]
        yield slot, parts[0] if len(parts) == 1 else pl.concat(parts)


def _pack(frame: pl.DataFrame) -> bytes:
    table = to_arrow(frame)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def _unpack(data: bytes) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(pa.ipc.open_stream(data).read_all()))
