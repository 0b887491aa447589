"""A whole flow without Spark: the real driver loop, the real tasks, the real store and log, with Spark's part played in this process.

Blobs are pickled and cut as on the wire, so that what a flow computes here is what it computes on a cluster; what Spark itself does
(placement, retries, lost executors) is tested on Spark.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl

import meander as md
from meander import worker
from meander.clock import SystemClock
from meander.connect.source import Batch, Choice, Split
from meander.epochs import tables
from meander.epochs.compaction import due_merges, finished_merge
from meander.epochs.loop import EpochDone, Loop
from meander.epochs.modification import Modifier, at_start
from meander.epochs.parts import Parts
from meander.epochs.probation import Trial
from meander.epochs.resumption import plan_before, put_plan, put_started, resume_plan
from meander.epochs.tasks import TaskRunner
from meander.plan.change.modify import StateRules
from meander.replicate.follow import Follower
from meander.replicate.membership import Cohort
from meander.state.compaction import run_merge
from meander.state.log import Log
from meander.state.segment import Segment, SegmentRef, ends_of
from meander.state.stores.contract import DirStore
from meander.task.messages import Control, Seen
from meander.task.physical import compile_plan


@dataclass(frozen=True)
class Script:
    """A source with a written-down future: per epoch its splits, each (partition, rows)."""

    columns: dict[str, Any]
    epochs: tuple[tuple[tuple[int, tuple[tuple[Any, ...], ...]], ...], ...]

    def schema(self) -> pl.Schema:
        return pl.Schema(self.columns)

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> ScriptCursor:
        return ScriptCursor(self, offset.get("next", 0))

    def read(self, payload: dict[str, Any]) -> Batch:
        schema = pl.Schema({n: pl.Int64() if isinstance(t, pl.Datetime) else t for n, t in self.schema().items()})
        return Batch(pl.DataFrame(payload["rows"], schema, orient="row").cast(dict(self.schema())))

    def describe(self) -> str:
        return "script"

    def canonical(self) -> str:
        return "script"


@dataclass
class ScriptCursor:
    script: Script
    next: int

    def look(self) -> None: ...

    def choose(self, now: float, everything: bool) -> Choice | None:
        if self.next == len(self.script.epochs):
            return None
        splits = self.script.epochs[self.next]
        self.next += 1
        return Choice(tuple(Split({"partition": p, "rows": rows}, len(rows), 8 * len(rows)) for p, rows in splits), {"next": self.next})

    def follow(self, given: Choice | None, agreed: Choice | None) -> None:
        if agreed is not None:
            self.next = agreed.offset["next"]
        elif given is not None:
            self.next -= 1

    def backlog(self, now: float) -> bool:
        return self.next < len(self.script.epochs)

    def waiting(self, now: float) -> int:
        return 0

    def slow_down(self, share: float) -> None: ...

    def finished(self) -> bool:
        return self.next == len(self.script.epochs)

    def release(self, names: Sequence[str]) -> None: ...

    def close(self) -> None: ...


class ReadOnly:
    """A source for who runs stages alone: its splits are given, and nobody asks it for more."""

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> Any:
        raise AssertionError("a stage does not decide")

    def describe(self) -> str:
        return type(self).__name__

    def canonical(self) -> str:
        return type(self).__name__


@dataclass
class LocalStarted:
    blobs: list[list[bytes]]
    shuffle_id: int = 0

    def is_over(self) -> bool:
        return True

    def cancel(self) -> None: ...


class LocalJobs:
    """What ``SparkJobs`` does, here and now."""

    def start_first_stage(self, controls: Sequence[Control], slots: int, places: Sequence[str] = ()) -> LocalStarted:
        return LocalStarted(_exchange([list(worker.first_stage(0, [pickle.dumps(c)])) for c in controls], slots))

    def run_rest(self, started: LocalStarted, levels: Sequence[Sequence[Control]], places: Any) -> Callable[[], list[Seen]]:
        def run() -> list[Seen]:
            blobs = started.blobs
            for number, controls in enumerate(levels):
                pairs = [
                    [(blob, pickle.dumps(control) if nth == 0 else b"") for nth, blob in enumerate(blobs[slot])]
                    for slot, control in enumerate(controls)
                ]
                if number == len(levels) - 1:
                    return [pickle.loads(next(iter(worker.last_stage(0, pair)))) for pair in pairs]
                blobs = _exchange([list(worker.next_stage(0, pair)) for pair in pairs], len(levels[number + 1]))
            raise AssertionError("no level")

        return run

    def run_single(self, controls: Sequence[Control], places: Any = ()) -> Callable[[], list[Seen]]:
        return lambda: [pickle.loads(next(iter(worker.only_stage(0, [pickle.dumps(c)])))) for c in controls]

    def run_small(self, levels: Sequence[Sequence[Control]], places: Any) -> Callable[[], list[Seen]]:
        if len(levels) == 1:
            return lambda: [pickle.loads(next(iter(worker.small_last_stage(0, [pickle.dumps(c)])))) for c in levels[0]]
        sent = [list(worker.small_next_stage(0, [pickle.dumps(c)])) for c in levels[0]]
        return self.run_rest(LocalStarted(_exchange(sent, len(levels[1]))), levels[1:], places)

    def forget_shuffles(self, keep: Sequence[Any] = ()) -> None: ...

    def cancel(self) -> None: ...


def _exchange(sent: list[list[bytes]], slots: int) -> list[list[bytes]]:
    blobs: list[list[bytes]] = [[] for _ in range(slots)]
    for items in sent:
        for slot, blob in zip(items[::2], items[1::2], strict=True):
            blobs[int.from_bytes(slot, "big")].append(blob)
    return blobs


class MergeAtOnce:
    """Compaction without a helper: every merge that is due, between two epochs."""

    def __init__(self, store: DirStore, key_groups: int) -> None:
        self._store, self._key_groups, self._done, self._number = store, key_groups, [], 0

    def consider(self, manifest: Any, routing: Any, slots: Any) -> None:
        merge = next((merge for merge, _, _ in due_merges(manifest, routing, slots)), None)
        if merge is None or self._done:
            return
        data, rows = run_merge(merge, self._open, self._key_groups)
        self._number += 1
        name = f"segments/{merge.table}/{manifest.generation:08d}-{manifest.epoch:010d}-merge-{self._number}x{manifest.position}.arrow"
        if rows:
            self._store.put(name, data)
        self._done.append(finished_merge(merge, name, rows, data.size, ends_of(data)))

    def collect(self) -> Any:
        return self._done.pop() if self._done else None

    def close(self) -> None: ...

    def _open(self, ref: SegmentRef) -> Segment:
        data = self._store.map(ref.name)
        assert data is not None
        return Segment(ref.name, data)


@dataclass
class Local:
    """A flow on a folder. Make another one on the same folder to have it restarted."""

    flow: md.Flow
    folder: Path
    parallelism: int = 2
    small: bool = True
    key_groups: int = 8
    ahead: bool = True
    done: list[EpochDone] = field(default_factory=list)
    clock: Any = field(default_factory=SystemClock)
    strict: bool = False
    store: Any = None
    replica: str | None = None
    election: Any = None
    merges: Any = None
    """A function of store and key groups, where merges are not to be done at once."""
    apply: Any = False
    """As of ``flow.start``; what is asked for is tried with the first step."""
    request_id: str = ""
    """Of that."""
    trial: Trial | None = None

    def __post_init__(self) -> None:
        store = self.store = self.store or DirStore(self.folder)
        log = Log.take_over(store, self.clock, self.key_groups, self.replica is not None)
        given = self.flow.plan()
        edited = at_start(self.apply, given, self.request_id or self.clock.new_id())
        before = None if edited is None else plan_before(store, log.manifest, given)
        plan, marks = before or resume_plan(store, log.manifest, given)
        written: set[str] = set()
        stored = tables.at_start(store, self.clock, log.manifest, plan, marks, written)
        compiled = compile_plan(plan)
        put_plan(store, compiled)
        runner = TaskRunner(LocalJobs(), dict, compiled, store.url, self.clock, self.strict, self.small)
        runner.generation(log.manifest.generation)
        runner.tables = stored
        letters = str(self.folder / "dead_letters")
        parts = Parts.of(compiled, letters)
        parts = replace(parts, plan={**parts.plan, **marks})
        merges = (self.merges or MergeAtOnce)(store, self.key_groups)
        cohort = None
        if self.replica is not None:
            cohort = Cohort(store, self.clock, self.replica, log.manifest.generation, self.election)
            cohort.beat()
            runner.digests = True
        self.cohort = cohort
        siblings = None if cohort is None else partial(Follower, cohort=cohort, clock=self.clock)
        self.loop = Loop(
            store, self.clock, log, parts, runner, self.parallelism, merges, 4, self.done.append, self.ahead, siblings=siblings
        )
        self.loop.housekeeping.written |= written
        put_started(store, plan, self.loop.plan)
        self.modifier = Modifier(self.loop, store, self.clock, plan, given, lambda made: Parts.of(made, letters), before is not None)
        self.loop.recover()
        self.modifier.recover()
        if edited is not None and before is not None:
            self.trial = self.modifier.begin(edited)

    @property
    def manifest(self) -> Any:
        return self.loop.log.manifest

    @property
    def stored(self) -> set[str]:
        """The tables that have rows which are not over."""
        return {name for name, table in self.manifest.tables.items() if table.rows}

    def step(self, flush: bool = False) -> bool:
        return self.loop.step(everything=True, flush=flush)

    def propose(self, *changes: Any, request_id: str = "", guard: Any = None, patience: float = 60.0, **rules: Any) -> Trial:
        """Ask for a modification, to be tried with the next step."""
        identity = request_id or self.clock.new_id()
        return self.modifier.propose(self.modifier.request(identity, changes, StateRules(**rules), "somebody", guard, patience))

    def flush(self) -> Iterator[bool]:
        """Steps of a flush while nobody has input, whatever the scripts have left: each says whether it was the flush itself."""
        cursors = self.loop.input.cursors.values()
        whole = [cursor.script for cursor in cursors]
        for cursor in cursors:
            cursor.script = replace(cursor.script, epochs=cursor.script.epochs[: cursor.next])
        try:
            while self.step(flush=True):
                yield self.done[-1].decision.flush
        finally:
            for cursor, script in zip(cursors, whole, strict=True):
                cursor.script = script

    def run(self, flush: bool = False) -> None:
        while self.step():
            pass
        while flush and self.step(flush=True):
            pass


@contextlib.contextmanager
def constants(**values: tuple[Any, Any]) -> Iterator[None]:
    """Other values for modules' constants: ``constants(FEWEST=(module, 2))``."""
    with contextlib.ExitStack() as stack:
        for name, (module, value) in values.items():
            stack.enter_context(mock.patch.object(module, name, value))
        yield
