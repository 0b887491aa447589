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
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, TypeVar

import polars as pl

from meander.clock import Clock
from meander.connect.source import Choice, Cursor, Source, Split
from meander.coordinate.routing import groups_of, slots_of, spread
from meander.coordinate.watermarks import advance, flushed, heard_from
from meander.engine.compaction import Compactor
from meander.engine.epoch import Decision, Outcome, Runner
from meander.engine.marks import anything_due, anything_open, evictions, lates, over
from meander.engine.parts import COMFORTABLE_RUNS, Parts, check_continuity, route, share_of_input
from meander.engine.publishing import publish, read_output
from meander.engine.tidy import Tidy
from meander.engine.trials import NOTHING, Rewritten, Setup, Trials
from meander.errors import Corrupted, Retryable
from meander.state.log import Log
from meander.state.manifest import Json, Manifest, operator_of, whole_table
from meander.state.seen import flush_seen, load_seen
from meander.state.store import Store

T = TypeVar("T")

_EPOCH_ATTEMPTS = 5


@dataclass(frozen=True)
class _Once:
    """What the first epoch of a changed plan does to the state, and no later one."""

    rewritten: Rewritten = NOTHING
    restarts: tuple[str, ...] = ()


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
        self.trials = Trials(self, clock)
        self._setup = _Once()
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
        check_continuity(store, manifest, parts)
        self.routing = {name: route(manifest, name, parallelism) for name in parts.keyed}
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
            decision, prepared = self._take_next(everything)
            if decision is None:
                decision = self._decide_without_input(flush)
            if self.trials.run(decision, everything):
                return True
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
            # Counted here: an epoch without input may have come between the decision and its turn.
            decision = self.timed_for(replace(decision, epoch=self.log.manifest.epoch + 1))
            if not self.trials.run(decision, everything=False):
                self._run_epoch(decision, None, lambda: None)

    def _run_epoch(self, decision: Decision, prepared: Any, meanwhile: Callable[[], None]) -> None:
        began = self._clock.monotonic()
        self.finish(decision, self._run(decision, prepared, meanwhile), began)

    def finish(self, decision: Decision, outcome: Outcome, began: float) -> None:
        """Commit an epoch that has run, publish it, and tidy up."""
        ran = self._clock.monotonic()
        before = self.log.manifest
        entry = self._entry(decision, outcome)
        manifest = self.log.append(entry)
        committed = self._clock.monotonic()
        self._publish(manifest)
        published = self._clock.monotonic()
        self._runner.settle()
        self._tidy.published(before)
        if entry["drops"] or entry["forgets"] or entry["restarts"]:
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

    # -- for trials -----------------------------------------------------------------------------------------------

    def install(self, setup: Setup, watched: frozenset[str]) -> Setup:
        """Run epochs with this from now on. Returns what it was before."""
        program = self._runner.adopt(setup.program, watched)
        before = Setup(self._parts, program, self.routing, self._cursors)
        self._parts, self.routing, self._cursors = setup.parts, setup.routing, setup.cursors
        self._keys = setup.parts.tables()
        self._setup = _Once(setup.rewritten, setup.restarts)
        return before

    def setup_of(self, parts: Parts, program: Any) -> Setup:
        """What epochs of another plan with the same sources would be run with."""
        return Setup(parts, program, {name: self.routing.get(name) or self.route_new() for name in parts.keyed}, self._cursors)

    def settle_setup(self) -> None:
        """The first epoch of a setup is committed: what was once is done."""
        self._setup = _Once()

    def watch(self, operators: frozenset[str]) -> None:
        self._runner.watch(operators)

    def mark_plan(self, unproven: Json | None) -> None:
        """Log entries say from now on what to go back to should the plan fail on the first rows; None: it has not."""
        plan = {name: value for name, value in self._parts.plan.items() if name != "unproven"}
        self._parts = replace(self._parts, plan=plan if unproven is None else {**plan, "unproven": unproven})

    def attempt(self, decision: Decision, attempts: int) -> Outcome:
        """Run an epoch without committing it, and with nothing begun ahead."""
        return self._run(decision, None, lambda: None, attempts)

    def abandon(self) -> None:
        self._runner.abandon()

    def recover_runner(self) -> None:
        self._runner.recover()

    def decide(self, epoch: int, everything: bool) -> Decision | None:
        return self._decide(epoch, everything)

    def timed_for(self, decision: Decision) -> Decision:
        """A decision as the plan in force needs it."""
        return replace(decision, late=lates(self._parts.timed, self.log.manifest, decision.epoch))

    def cursor(self, source: str) -> Cursor | None:
        return self._cursors.get(source)

    def open_cursor(self, name: str, source: Source, anew: bool) -> Cursor:
        manifest = self.log.manifest
        if anew:
            return source.cursor({}, set())
        return source.cursor(manifest.offsets.get(name, {}), load_seen(self._store, manifest, name))

    def route_new(self) -> list[int]:
        """A routing table for an operator that is new."""
        return spread(self.log.manifest.key_groups, self._asked)

    def tables_beside(self, parts: Parts) -> tuple[str, ...]:
        """The tables that are stored and that these parts do not have."""
        known = parts.tables()
        return tuple(name for name in self.log.manifest.tables if whole_table(name) not in known)

    def output(self, outcome: Outcome) -> dict[str, pl.DataFrame]:
        """What an epoch that is not committed would publish, per sink."""
        return read_output(self._store, outcome)

    def throw_away(self, outcome: Outcome) -> None:
        """What an epoch wrote that is not committed is garbage."""
        for segments in outcome.segments.values():
            for segment in segments:
                self._tidy.unwanted(segment[0])
        for files in outcome.staged.values():
            for file in files:
                self._tidy.unwanted(file["name"])

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _take_next(self, everything: bool) -> tuple[Decision | None, Any]:
        """The decision that was made ahead, or one now. What was begun ahead of a trial was begun for another plan."""
        decision, prepared = self._next or (None, None)
        self._next = None
        waiting = self.trials.waiting
        if waiting is not None and prepared is not None:
            self._runner.discard(prepared)
            prepared = None
        if decision is None and not (waiting is not None and waiting.swaps and not self._chosen):
            decision = self._decide(self.log.manifest.epoch + 1, everything)
        return decision, prepared

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
        if not self._work_ahead or not self.trials.quiet or not any(cursor.backlog(self.now()) for cursor in self._cursors.values()):
            return
        with contextlib.suppress(Retryable):  # it is only ahead of time: what fails here is done, or reported, when its turn comes
            decision = self._decide(current.epoch + 1, everything)
            if decision is not None:
                self._next = (decision, None)  # first: the cursors have moved on
                self._next = (decision, self._runner.prepare(decision, self.routing))

    def _run(self, decision: Decision, prepared: Any, meanwhile: Callable[[], None], attempts: int = _EPOCH_ATTEMPTS) -> Outcome:
        for attempt in range(attempts):
            last = attempt == attempts - 1
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
            return self._runner.begin(decision, self._setup.rewritten.view(self.log.manifest), self.routing, prepared)
        except Retryable:
            if last:
                raise
            return None

    def _entry(self, decision: Decision, outcome: Outcome) -> Json:
        timed, before = self._parts.timed, self._setup.rewritten.view(self.log.manifest)
        segments = {name: [ref.to_json() for ref in table.segments] for name, table in self._setup.rewritten.tables.items()}
        for name, added in outcome.segments.items():
            segments.setdefault(name, []).extend(added)
        evict = evictions(timed, before, decision.now, decision.flush)
        known = heard_from(before.times, self._parts.sources) if self._setup.restarts else before.times
        times = advance(known, self._parts.rules, outcome.heard, decision.now)
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
            "tables": {name: {"keys": self._keys_of(name), "segments": added} for name, added in segments.items()},
            "forgets": list(self._setup.rewritten.forgets),
            "restarts": list(self._setup.restarts),
            "drops": over(timed, before.tables, evict, decision.now),
            "times": flushed(times, outcome.closed) if decision.flush else times,
            "staged": outcome.staged,
            "counts": {"epochs": 1, **outcome.counts},
        }

    def _keys_of(self, table: str) -> tuple[str, ...]:
        return self._keys[whole_table(table)]

    def _publish(self, manifest: Manifest) -> None:
        publish(self._store, self._parts.sinks, manifest)

    def _release(self, taken: Mapping[str, list[str]]) -> None:
        """Never before the commit: until then a crash means that the epoch reads its input again."""
        for source, cursor in self._cursors.items():
            if source in taken:
                cursor.release(taken[source])

    def _relieve(self) -> None:
        runs = 0
        for name, table in self.log.manifest.tables.items():
            if len(table.segments) > COMFORTABLE_RUNS:
                routing = self.routing[operator_of(name)]
                runs = max(runs, *(len(table.alive_for(groups_of(routing, slot))) for slot in range(slots_of(routing))))
        share = share_of_input(runs)
        if share != self._share:
            self._share = share
            for cursor in self._cursors.values():
                cursor.slow_down(share)

    def _take_merge(self) -> None:
        finished = self._compactor.collect()
        table = None if finished is None else self.log.manifest.tables.get(finished["table"])
        if finished is not None and (table is None or not set(finished["inputs"]) <= {segment.name for segment in table.segments}):
            self._tidy.unwanted(finished["output"][0])  # its bucket of time is over, or the state it merged was dropped
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
