"""The driver's loop: decide, run, commit, publish; and recovery, which is the same from the middle. Spark-free.

One epoch:

1. decide: every source's cursor offers its next splits; together they are the epoch's input
2. run: tasks write segments and staged output under names of their own attempt
3. commit: one log entry, put if absent; before it nothing has happened, after it everything has
4. publish: the files the entry names become visible; redone on recovery, so it must be idempotent
5. tidy: sources may put away what was read; snapshots, compaction, and removing what no retained epoch needs

While epoch e runs, e+1 is decided and its first stage begun, since neither looks at state. It is never committed before e.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, TypeVar

from meander.clock import Clock
from meander.connect.sink import Sink, Staged, StagedFile
from meander.connect.source import Choice, Cursor, Source, Split
from meander.coordinate.routing import groups_of, rebalance, slots_of, spread
from meander.coordinate.watermarks import Rule, advance, flushed
from meander.engine.compaction import Compactor
from meander.engine.epoch import Decision, Outcome, Runner
from meander.engine.marks import Timed, anything_due, anything_open, evictions, lates, over
from meander.engine.tidy import Tidy
from meander.errors import ConfigError, Corrupted, Retryable
from meander.plan.diff import explain_difference
from meander.state.log import Log
from meander.state.manifest import Json, Manifest, operator_of, whole_table
from meander.state.reading import plan_record_name
from meander.state.seen import flush_seen, load_seen
from meander.state.store import Store

T = TypeVar("T")

_EPOCH_ATTEMPTS = 5
_COMFORTABLE_RUNS = 40


@dataclass(frozen=True)
class Parts:
    """What a loop works on: a flow's ends and its stateful operators, by name."""

    plan: Json
    """Version and digest, as the log records them."""
    record: Json
    """The plan as plain data, to say what is different where the store belongs to another one."""
    sources: Mapping[str, Source]
    sinks: Mapping[str, Sink]
    keyed: Mapping[str, Mapping[str, tuple[str, ...]]]
    """Stateful operators, their tables, and the columns that tell the rows of each apart."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """The watermarks."""
    timed: Mapping[str, Timed] = field(default_factory=dict)
    """The stateful operators that follow time."""

    def tables(self) -> dict[str, tuple[str, ...]]:
        return {name: keys for tables in self.keyed.values() for name, keys in tables.items()}


@dataclass(frozen=True)
class EpochDone:
    """What listeners are told after each epoch."""

    epoch: int
    decision: Decision
    outcome: Outcome
    seconds: dict[str, float]
    manifest: Manifest


class Loop:
    """One generation's work on a store. Not shared between threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        log: Log,
        parts: Parts,
        runner: Runner,
        parallelism: int,
        compactor: Compactor,
        retain: int = 64,
        listener: Callable[[EpochDone], None] = lambda done: None,
        ahead: bool = True,
        deletions: Executor | None = None,
    ) -> None:
        self.log = log
        self._store, self._clock, self._parts, self._runner = store, clock, parts, runner
        self._compactor = compactor
        self._listener = listener
        self._work_ahead = ahead
        self._tidy = Tidy(store, log.manifest, retain, lambda segments: self.collected(segments), deletions)
        self._next: tuple[Decision, Any] | None = None
        self._keys = parts.tables()
        self._changes: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._at_work = threading.RLock()
        self._asked = parallelism
        self._share = 1.0
        self._decided = 0.0
        self.collected: Callable[[list[str]], None] = lambda segments: None
        """Called with segments that were removed from the store."""
        self.resting: Callable[[], None] = lambda: None
        """Called between epochs when there is no input for one."""
        self._chosen: dict[str, Choice | None] = {}
        """What sources have given for a decision that is not made yet: their cursors have moved on, so it must not be forgotten."""
        manifest = log.manifest
        _check_continuity(store, manifest, parts)
        self.routing = {name: _route(manifest, name, parallelism) for name in parts.keyed}
        self._cursors: dict[str, Cursor] = {
            name: source.cursor(manifest.offsets.get(name, {}), load_seen(store, manifest, name)) for name, source in parts.sources.items()
        }

    # -- recovery -------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish what the last generation committed and may not have published."""
        with self._fenced_first():
            for sink in self._parts.sinks.values():
                sink.open()
            self._publish(self.log.manifest)
            self._release(self.log.manifest.recent)
            self._tidy.sweep()

    # -- one epoch ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Find all input that is there now, for the steps that ask for everything."""
        for cursor in self._cursors.values():
            cursor.look()

    def between_epochs(self, change: Callable[[], T]) -> Future[T]:
        """Have something done in the loop's own thread before the next epoch begins. Can be called from any thread."""
        done: Future[T] = Future()

        def perform() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(change())
            except Exception as error:
                done.set_exception(error)

        self._changes.put(perform)
        return done

    def make_changes(self) -> None:
        """Between two epochs: do what was asked for. Waits for an epoch that runs, whoever's thread it is in."""
        with self._at_work:
            while not self._changes.empty():
                self._changes.get()()

    def reroute(self, operator: str, table: list[int]) -> None:
        """Another routing table for an operator, in force from the next epoch. Between two epochs only."""
        if table == self.routing[operator]:
            return
        self.routing = {**self.routing, operator: table}
        if self._next is not None:  # the next epoch's input stays decided; what was begun of it was for the old table
            decision, prepared = self._next
            self._runner.discard(prepared)
            self._next = (decision, None)

    def finish_merges(self, timeout: float) -> None:
        """Let no merge be under way: what one gives out stands where it was made, and whoever takes over would not have it."""
        deadline = self._clock.monotonic() + timeout
        while self._compactor.busy and self._clock.monotonic() < deadline:
            self._take_merge()
            self._clock.sleep(0.01)

    def step(self, everything: bool = False, flush: bool = False) -> bool:
        """Run one epoch if there is input for one, or something is due without. ``flush``: where there is no input, close what is open."""
        with self._at_work, self._fenced_first():
            self.make_changes()
            decision, prepared = self._next or (self._decide(self.log.manifest.epoch + 1, everything), None)
            self._next = None
            if decision is None:
                decision = self._decide_without_input(flush)
            if decision is None:
                self._rest()
                return False
            self._run_epoch(decision, prepared, lambda: self._look_ahead(decision, everything))
            return True

    def step_if_idle(self) -> bool:
        """The same, unless an epoch runs in another thread: that one may be waiting for ours to end, so ours must not wait for it."""
        if not self._at_work.acquire(blocking=False):
            return False
        try:
            return self.step()
        finally:
            self._at_work.release()

    def run_epoch(self, decision: Decision) -> None:
        """Run, commit and publish one epoch that somebody else decided."""
        with self._at_work, self._fenced_first():
            late = lates(self._parts.timed, self.log.manifest, decision.epoch)
            self._run_epoch(replace(decision, late=late), None, lambda: None)

    def _run_epoch(self, decision: Decision, prepared: Any, meanwhile: Callable[[], None]) -> None:
        began = self._clock.monotonic()
        outcome = self._run(decision, prepared, meanwhile)
        ran = self._clock.monotonic()
        before = self.log.manifest
        entry = self._entry(decision, outcome)
        manifest = self.log.append(entry)
        committed = self._clock.monotonic()
        self._publish(manifest)
        published = self._clock.monotonic()
        self._runner.settle()
        self._tidy.published(before)
        if entry["drops"]:
            self._tidy.dropped(before, manifest)
        self._release(decision.seen)
        self._tidy_up()
        seconds = {
            "run": ran - began,
            "commit": committed - ran,
            "publish": published - committed,
            "tidy": self._clock.monotonic() - published,
        }
        self._listener(EpochDone(decision.epoch, decision, outcome, seconds, manifest))

    def waiting(self) -> int:
        """About how many rows the sources have to give."""
        return sum(cursor.waiting(self.now()) for cursor in self._cursors.values())

    def now(self) -> float:
        """The decision's clock: never behind the last decision, whoever made it, and also where that one is not committed yet."""
        self._decided = max(self._clock.now(), self.log.manifest.now, self._decided)
        return self._decided

    def finished(self) -> bool:
        """Whether no source can ever have more."""
        return self._next is None and all(cursor.finished() for cursor in self._cursors.values())

    def close(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()
        self._compactor.close()

    # -- pieces ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _fenced_first(self) -> Iterator[None]:
        """What a replaced run misses was collected by its successor: that is no corruption, and trying again does not help."""
        try:
            yield
        except (Corrupted, Retryable):
            with contextlib.suppress(Retryable):
                self.log.check_owner()
            raise

    def _rest(self) -> None:
        """Without input nothing is appended, so that a replaced run would not notice, and seem to run for ever."""
        with contextlib.suppress(Retryable):  # the next look tells
            self.log.check_owner()
        self._tidy_up(idle=True)
        self.resting()

    def _decide(self, epoch: int, everything: bool) -> Decision | None:
        now = self.now()
        splits: list[tuple[str, Split]] = []
        offsets: dict[str, Json] = {}
        seen: dict[str, list[str]] = {}
        for name, cursor in self._cursors.items():
            if name not in self._chosen:
                self._chosen[name] = cursor.choose(now, everything)
        chosen, self._chosen = self._chosen, {}
        for name, choice in chosen.items():
            if choice is None:
                continue
            splits.extend((name, split) for split in choice.splits)
            offsets[name] = choice.offset
            if choice.seen:
                seen[name] = list(choice.seen)
        late = lates(self._parts.timed, self.log.manifest, epoch)
        return Decision(epoch, now, tuple(splits), offsets, seen, late=late) if splits else None

    def _decide_without_input(self, flush: bool) -> Decision | None:
        """An epoch for what is due by event time alone, or because a partition that held it back has become idle."""
        timed, manifest, now = self._parts.timed, self.log.manifest, self.now()
        if not timed:
            return None
        epoch = manifest.epoch + 1
        late, evict = lates(timed, manifest, epoch), evictions(timed, manifest, now)
        then = evictions(timed, replace(manifest, times=advance(manifest.times, self._parts.rules, {}, now)), now)
        due = anything_due(timed, manifest, late, evict, now) or (then != evict and anything_due(timed, manifest, evict, then, now))
        if due or (flush and anything_open(timed, manifest)):
            return Decision(epoch, now, (), {}, late=late, flush=flush and not due)
        return None

    def _look_ahead(self, current: Decision, everything: bool) -> None:
        """Decide the next epoch early and begin it, where input for a whole one is waiting. A flow that keeps up does better to wait."""
        if not self._work_ahead or not any(cursor.backlog(self.now()) for cursor in self._cursors.values()):
            return
        with contextlib.suppress(Retryable):  # it is only ahead of time: what fails here is done, or reported, when its turn comes
            decision = self._decide(current.epoch + 1, everything)
            if decision is not None:
                self._next = (decision, None)  # first: the cursors have moved on
                self._next = (decision, self._runner.prepare(decision, self.routing))

    def _run(self, decision: Decision, prepared: Any, meanwhile: Callable[[], None]) -> Outcome:
        for attempt in range(_EPOCH_ATTEMPTS):
            last = attempt == _EPOCH_ATTEMPTS - 1
            pending = self._begin(decision, prepared if attempt == 0 else None, last)
            if attempt == 0:
                meanwhile()
            if pending is not None:
                try:
                    return pending()
                except Retryable:
                    if last:
                        raise
            self._runner.recover()
            self._clock.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")

    def _begin(self, decision: Decision, prepared: Any, last: bool) -> Callable[[], Outcome] | None:
        try:
            return self._runner.begin(decision, self.log.manifest, self.routing, prepared)
        except Retryable:
            if last:
                raise
            return None

    def _entry(self, decision: Decision, outcome: Outcome) -> Json:
        timed, before = self._parts.timed, self.log.manifest
        evict = evictions(timed, before, decision.now, decision.flush)
        times = advance(before.times, self._parts.rules, outcome.heard, decision.now)
        return {
            "kind": "epoch",
            "epoch": decision.epoch,
            "now": decision.now,
            "plan": self._parts.plan,
            "splits": [[source, split.payload] for source, split in decision.splits],
            "offsets": decision.offsets,
            "seen": decision.seen,
            "batch": decision.batch,
            "routing": self.routing,
            "asked": self._asked,
            "tables": {name: {"keys": self._keys_of(name), "segments": segments} for name, segments in outcome.segments.items()},
            "drops": over(timed, before.tables, evict, decision.now),
            "times": flushed(times, outcome.closed) if decision.flush else times,
            "staged": outcome.staged,
            "counts": {"epochs": 1, **outcome.counts},
        }

    def _keys_of(self, table: str) -> tuple[str, ...]:
        return self._keys[whole_table(table)]

    def _publish(self, manifest: Manifest) -> None:
        for name, files in manifest.staged.items():
            sink = self._parts.sinks.get(name)
            if sink is None:
                raise ConfigError(
                    f"epoch {manifest.epoch} has output for the sink '{name}', which this flow does not have; start it with that sink once"
                )
            sink.publish(manifest.epoch, [self._staged(StagedFile.from_json(file)) for file in files])

    def _staged(self, file: StagedFile) -> Staged:
        def get() -> bytes:
            data = self._store.get(file.name)
            if data is None:
                raise Corrupted(f"staged file '{file.name}' is named by the log but is not in store {self._store.url}")
            return data

        return Staged(file, get, self._store.local(file.name))

    def _release(self, taken: Mapping[str, list[str]]) -> None:
        """Never before the commit: until then a crash means that the epoch reads its input again."""
        for source, cursor in self._cursors.items():
            if source in taken:
                cursor.release(taken[source])

    def _relieve(self) -> None:
        runs = 0
        for name, table in self.log.manifest.tables.items():
            if len(table.segments) > _COMFORTABLE_RUNS:
                routing = self.routing[operator_of(name)]
                runs = max(runs, *(len(table.alive_for(groups_of(routing, slot))) for slot in range(slots_of(routing))))
        share = share_of_input(runs)
        if share != self._share:
            self._share = share
            for cursor in self._cursors.values():
                cursor.slow_down(share)

    def _take_merge(self) -> None:
        finished = self._compactor.collect()
        if finished is not None and finished["table"] not in self.log.manifest.tables:
            self._tidy.unwanted(finished["output"][0])  # its bucket of time is over
        elif finished is not None:
            self._tidy.dropped(self.log.manifest, self.log.append(finished))

    def _tidy_up(self, idle: bool = False) -> None:
        self._take_merge()
        slots = {name: slots_of(table) for name, table in self.routing.items()}
        self._compactor.consider(self.log.manifest, self.routing, slots)
        self._relieve()
        if self.log.due_for_snapshot() and not idle:
            before = self.log.manifest
            self.log.snapshot(flush_seen(self._store, self._clock, before))
            self._tidy.dropped(before, self.log.manifest)
            self._tidy.snapshotted(self.log.manifest)
        self._tidy.collect(self.log.manifest)


def share_of_input(runs: int) -> float:
    """How much of its limits a source should use, given the longest list of runs that a lookup meets.

    Compaction that falls behind makes every lookup slower: less input per epoch leaves it time to catch up.

    >>> [round(share_of_input(runs), 2) for runs in (1, 40, 60, 120)]
    [1.0, 1.0, 0.44, 0.11]
    """
    return min(1.0, max(0.05, (_COMFORTABLE_RUNS / max(runs, 1)) ** 2))


def _route(manifest: Manifest, name: str, parallelism: int) -> list[int]:
    """The table to begin with. A flow that was rescaled while it ran stays so when it is started again as it was started before."""
    before = manifest.routing.get(name)
    if before is None:
        return spread(manifest.key_groups, parallelism)
    return before if parallelism in (manifest.asked, slots_of(before)) else rebalance(before, parallelism)


def _check_continuity(store: Store, manifest: Manifest, parts: Parts) -> None:
    """A store goes on only with the flow it holds the state of."""
    keys = parts.tables()
    for name, table in manifest.tables.items():
        if name in keys and tuple(keys[name]) != table.keys:
            raise ConfigError(
                f"operator '{name}' is keyed by {', '.join(keys[name])}, but its stored state by {', '.join(table.keys)}; "
                "give the operator another name, or use another store"
            )
    if manifest.plan and manifest.plan["digest"] != parts.plan["digest"]:
        stored = store.get(plan_record_name(manifest.plan["digest"]))
        difference = explain_difference(json.loads(stored), parts.record) if stored is not None else "in what, the store does not say"
        raise ConfigError(
            f"the store holds flow '{manifest.plan['flow']}' as it was (plan {manifest.plan['digest'][:12]}), this one differs "
            f"(plan {parts.plan['digest'][:12]}): {difference}. Start the flow that made the store, or use another store."
        )
