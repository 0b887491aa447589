"""The driver's loop: decide, run, commit, publish; and recovery, which is the same from the middle.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import polars as pl

from meander.clock import Clock
from meander.connect.sink import Sink
from meander.coordinate.marks import anything_due, anything_open, emptied, evictions, floors, flushed, lates
from meander.coordinate.routing import spread
from meander.coordinate.watermarks import heard_from
from meander.epochs.compaction import Compactor
from meander.epochs.decision import Decision, EpochDone, Outcome
from meander.epochs.former import former_tables, not_closed, set_aside
from meander.epochs.input import Input
from meander.epochs.maintenance import Housekeeping
from meander.epochs.parts import Parts, check_continuity, route
from meander.epochs.patience import Patience
from meander.epochs.probation import Once, Rewritten, Setup, Trials
from meander.epochs.publish import publish, read_output
from meander.epochs.runner import Runner
from meander.epochs.siblings import Siblings
from meander.epochs.tidy import Tidy
from meander.errors import Corrupted, Retryable, Unavailable
from meander.state.log import Log, Taken
from meander.state.manifest import Json, Manifest, Table
from meander.state.segment import SegmentRef
from meander.state.stores.contract import Store

T = TypeVar("T")

_EPOCH_ATTEMPTS = 5


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
        siblings: Callable[[Loop], Siblings] | None = None,
        patience: float | None = None,
    ) -> None:
        """``patience``: seconds for which a store that does not answer is waited for; None: as long as it takes.

        ``siblings`` makes the other replicas known to this loop, where there are some.
        """
        self.log = log
        self._store, self._clock, self._parts, self._runner = store, clock, parts, runner
        self._listener = listener
        self._work_ahead = ahead
        self.trials = Trials(self, clock)
        self._formers: tuple[Parts, ...] = ()
        self._setup = Once()
        self.tidy = Tidy(store, log.manifest, retain, lambda segments: self.collected(segments), deletions)
        self.housekeeping = Housekeeping(self, store, clock, compactor, self.tidy, alone=siblings is None)
        self._next: tuple[Decision, Any] | None = None
        self._kept = parts.tables()
        self._changes: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._at_work = threading.RLock()
        self._asked = parallelism
        self._in_force = parts
        """Of the plan that the last committed epoch ran under: its output is for these sinks, also while another plan is tried."""
        self._published = 0
        """The last epoch whose output all sinks have, as far as is known here."""
        self.collected: Callable[[list[str]], None] = lambda segments: None
        """Called with segments that were removed from the store."""
        self.plan_changed: Callable[[Manifest], None] = lambda manifest: None
        """Called when a sibling has committed an epoch under another plan, or has ended the probation of this one."""
        self.plan_unsettled: Callable[[Manifest], None] = lambda manifest: None
        """Called when a trial was broken off: what this manifest says is in force, and on probation where it says so."""
        self.resting: Callable[[], None] = lambda: None
        """Called between epochs when there is no input for one."""
        self.stops: Callable[[], bool] = lambda: False
        """Whether the run is to end, asked by what would wait for long."""
        manifest = log.manifest
        check_continuity(store, manifest, parts)
        self.routing = {name: route(manifest, name, parallelism) for name in parts.keyed}
        self.siblings = None if siblings is None else siblings(self)
        self.input = Input(store, clock.now if self.siblings is None else self.siblings.cohort.now, log, parts.sources)
        who = f"flow '{parts.plan['flow']}'" if self.siblings is None else f"replica '{self.siblings.cohort.name}'"
        self.patience = Patience(clock, who, patience, Unavailable if self.siblings is None else Retryable)

    # -- recovery -------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish what the last generation committed and may not have published."""
        with self._fenced_first():
            self._parts.open_sinks()
            self.publish(self.log.manifest) if self.siblings is None else self.siblings.recover()
            self.input.release(self.log.manifest.recent)
            self.tidy.sweep()

    # -- one epoch ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Find all input that is there now, for the steps that ask for everything."""
        self.input.look()

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
        if self.siblings is not None:
            self.siblings.append({"kind": "routing", "routing": {operator: table}})
        self._route(operator, table)

    def _route(self, operator: str, table: list[int]) -> None:
        self.routing = {**self.routing, operator: table}
        self._unprepare()

    def _unprepare(self) -> None:
        """The next epoch's input stays decided; what was begun of it was for another table or plan."""
        if self._next is not None:
            decision, prepared = self._next
            self._runner.discard(prepared)
            self._next = (decision, None)

    def step(self, everything: bool = False, flush: bool = False) -> bool:
        """Run one epoch if there is input for one, or something is due without. ``flush``: where there is no input, close what is open."""
        with self._at_work, self._fenced_first(), contextlib.nullcontext() if self.siblings is None else self.siblings.cohort.stepping():
            self.make_changes()
            if self.siblings is not None:
                self.siblings.keep_up()
            decision, prepared = self._take_next(everything)
            if decision is None and self._may_decide:
                decision = self._agreed(self._decide_without_input(flush))
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

    def persevere(self, work: Callable[..., bool], **options: bool) -> bool:
        """Do a step, or other work of the loop; where the store does not answer, hold, and go on from where the log is then."""
        if self.siblings is not None:
            return self.siblings.persevere(work, **options)
        return self.patience.persevere(partial(work, **options), self._mend)

    def _mend(self) -> None:
        """Whatever was begun is given up; what is committed is published. The log may have an entry of ours that was not answered."""
        with self._at_work:
            self.recover_runner()
            for entry, before, after in self.log.news():
                self.committed_elsewhere(entry, before, after)
            self.log.settle()  # before anything is removed that such an entry names
            manifest = self.log.manifest
            if self.trials.astray:  # what was tried may be in force or not: the log says
                self.trials.forget()
                self.plan_unsettled(manifest)
            self._drop_next()
            self.housekeeping.undo()
            self.input.reopen(self._parts.sources)
            if manifest.epoch != self._published:
                self.publish(manifest)

    def run_epoch(self, decision: Decision) -> bool:
        """Run, commit and publish one epoch that somebody else decided."""
        with self._at_work, self._fenced_first():
            # Numbered and timed here: an epoch without input may have come between the decision and its turn.
            last = self.log.manifest
            decision = self.timed_for(replace(decision, epoch=last.epoch + 1, now=max(decision.now, last.now)))
            if not self.trials.run(decision, everything=False):
                self._run_epoch(decision, None, lambda: None)
        return True

    def _run_epoch(self, decision: Decision, prepared: Any, meanwhile: Callable[[], None]) -> None:
        began = self._clock.monotonic()
        try:
            outcome = self._run(decision, prepared, meanwhile)
        except (Corrupted, Retryable):
            if self.siblings is None or not self.siblings.is_over(decision):
                raise
            return
        self.finish(decision, outcome, began)

    def finish(self, decision: Decision, outcome: Outcome, began: float) -> bool:
        """Commit an epoch that has run, publish it, and tidy up. False where a sibling has committed it."""
        ran = self._clock.monotonic()
        committing = self._commit(decision, outcome)
        if committing is None:
            self.housekeeping.do()
            self._listener(EpochDone(decision.epoch, decision, outcome, {"run": ran - began}, self.log.manifest))
            return False
        entry, before, manifest = committing
        committed = self._clock.monotonic()
        by_us = True
        if self.siblings is None:
            self.publish(manifest)
        else:
            by_us = self.siblings.publish(manifest)
        published = self._clock.monotonic()
        self._runner.settle()
        self.tidy.published(before)
        if self.siblings is not None:
            self.siblings.committed(entry, by_us)
        self._parts = replace(self._parts, plan=entry["plan"])  # with what is set aside now
        went = entry["drops"] or entry["floors"] or entry["forgets"] or entry["restarts"] or "unproven" in before.plan
        went = went or before.stored_tables() != manifest.stored_tables()
        if went or before.was_empty(entry["tables"]):
            self.tidy.dropped(before, manifest)
        self.input.release(decision.seen)
        self.housekeeping.do()
        seconds = {
            "run": ran - began,
            "commit": committed - ran,
            "publish": published - committed,
            "tidy": self._clock.monotonic() - published,
        }
        self._listener(EpochDone(decision.epoch, decision, outcome, seconds, manifest))
        return True

    def _commit(self, decision: Decision, outcome: Outcome) -> tuple[Json, Manifest, Manifest] | None:
        """Make an epoch's result the log's: its entry, and the manifest before and after it. None where a sibling has committed it."""
        while True:
            if self.siblings is not None and not self.siblings.ready_to_commit(decision, outcome):
                return None
            before, entry = self.log.manifest, self._entry(decision, outcome)
            try:
                manifest = self.log.append(entry)
            except Taken as taken:
                assert self.siblings is not None
                if self.siblings.was_faster(decision, outcome, taken):
                    return None
                continue
            self._in_force = self._parts
            return entry, before, manifest

    def waiting(self) -> int:
        """About how many rows the sources have to give."""
        return self.input.waiting()

    def finished(self) -> bool:
        """Whether no source can ever have more."""
        return self._next is None and self.input.finished()

    def close(self) -> None:
        self.input.close()
        self.housekeeping.close()
        self.tidy.close()

    # -- for trials -----------------------------------------------------------------------------------------------

    def install(self, setup: Setup, watched: frozenset[str], formers: tuple[Parts, ...] = ()) -> Setup:
        """Run epochs with this from now on. Returns what it was before. ``formers``: see ``mark_plan``."""
        self._unprepare()
        program = self._runner.adopt(setup.program, watched)
        before = Setup(self._parts, program, self.routing, self.input.cursors)
        self._parts, self.routing, self.input.cursors = setup.parts, setup.routing, setup.cursors
        self._kept = setup.parts.tables()
        self._formers = formers
        self._setup = Once(setup.rewritten, setup.restarts)
        return before

    def setup_of(self, parts: Parts, program: Any) -> Setup:
        """What epochs of another plan with the same sources would be run with."""
        tables = {name: self.routing.get(name) or route(self.log.manifest, name, self._asked) for name in parts.keyed}
        return Setup(parts, program, tables, self.input.cursors)

    def settle_setup(self) -> None:
        """The first epoch of a setup is committed: what was once is done."""
        self._setup, self._in_force = Once(), self._parts

    def watch(self, operators: frozenset[str]) -> None:
        self._runner.watch(operators)

    def mark_plan(self, unproven: Json | None, formers: tuple[Parts, ...]) -> None:
        """Log entries say from now on what to go back to should the plan fail on the first rows; None: it has not.

        ``formers`` are the plans that may be gone back to, the last first: what they still need is set aside, and not dropped.
        """
        self._formers = formers
        plan = {name: value for name, value in self._parts.plan.items() if name != "unproven"}
        self._parts = replace(self._parts, plan=plan if unproven is None else {**plan, "unproven": unproven})

    def mark_packed(self, name: str) -> None:
        """The plan in force is in the store."""
        self._parts = replace(self._parts, plan={**self._parts.plan, "packed": name})

    def attempt(self, decision: Decision, attempts: int) -> Outcome:
        """Run an epoch without committing it, and with nothing begun ahead."""
        return self._run(decision, None, lambda: None, attempts)

    def abandon(self) -> None:
        self._runner.abandon()

    def recover_runner(self) -> None:
        self._runner.recover()

    def timed_for(self, decision: Decision) -> Decision:
        """A decision as the plan in force needs it."""
        return replace(decision, late=lates(self._parts.timed, self._rewritten.view(self.log.manifest), decision.epoch))

    def reached(self, manifest: Manifest) -> dict[str, int]:
        """Per operator in force that follows watermarks, the mark up to which things close next."""
        timed = {name: keyed for name, keyed in self._parts.timed.items() if keyed.timing is not None and not keyed.timing.by_clock}
        return evictions(timed, manifest, self._clock.now())

    def route_new(self) -> list[int]:
        """A routing table for an operator that is new."""
        return spread(self.log.manifest.key_groups, self._asked)

    @property
    def _rewritten(self) -> Rewritten:
        """What the next epoch does to the state as it is now."""
        return self._setup.rewritten(self.log.manifest)

    def as_if_never(self, unproven: Json, parts: Parts) -> Callable[[Manifest], Rewritten]:
        """The tables, times and floors of a plan when the change on top of it is taken back: nothing was dropped for that one."""
        so_far, known = self._setup.rewritten, parts.tables()

        def rewritten(now: Manifest) -> Rewritten:
            manifest = so_far(now).view(now)
            tables = {name: table for name, table in former_tables(manifest, unproven).items() if name in known}
            other = {name: table for name, table in tables.items() if now.tables.get(name) != table}
            forgets = tuple(name for name in now.tables if name not in tables or name in other)
            return Rewritten(forgets, other, not_closed(unproven["times"], now.times), unproven["flushed"])

        return rewritten

    def output(self, outcome: Outcome) -> dict[str, pl.DataFrame]:
        """What an epoch that is not committed would publish, per sink."""
        return read_output(self._store, outcome)

    def throw_away(self, outcome: Outcome) -> None:
        """What an epoch wrote that is not committed is garbage."""
        self.tidy.unwanted(*outcome.names())

    @property
    def plan(self) -> Json:
        """Version and digest of what is in force."""
        return self._parts.plan

    @property
    def sinks(self) -> Mapping[str, Sink]:
        """Those of the last committed epoch."""
        return self._in_force.sinks

    # -- for siblings ---------------------------------------------------------------------------------------------

    def begin_anew(self, manifest: Manifest) -> None:
        """Go on from a manifest that we have not come to by ourselves."""
        self._drop_next()
        self.input.reopen(self._parts.sources)
        self.input.release(manifest.recent)  # also what an entry of ours took that was not answered
        self.routing = {name: route(manifest, name, self._asked) for name in self._parts.keyed}

    def adopt_probation(self, unproven: Json) -> None:
        """A sibling has committed an epoch of the plan on probation: what it has set aside is so for our next one."""
        self._parts = replace(self._parts, plan={**self._parts.plan, "unproven": unproven})

    def committed_elsewhere(self, entry: Json, before: Manifest, after: Manifest) -> None:
        """A sibling's entry has the effects of one of ours."""
        if entry["kind"] == "epoch":
            self.tidy.published(before)
            self.input.release(entry["seen"])
        if entry["kind"] == "routing":
            for operator, table in entry["routing"].items():
                self._route(operator, table)
        self.tidy.dropped(before, after)

    def settle_lost(self, outcome: Outcome | None) -> None:
        """An epoch that ran is not to be committed; its files, where given, are garbage."""
        if outcome is not None:
            self.throw_away(outcome)
        self._runner.settle()

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _agreed(self, mine: Decision | None) -> Decision | None:
        """The decision that counts."""
        return mine if mine is None or self.siblings is None else self.siblings.agree(mine)

    @property
    def _may_decide(self) -> bool:
        return self.siblings is None or self.siblings.may_decide

    def make_way(self, taken: Taken) -> None:
        """A sibling has appended something."""
        assert self.siblings is not None
        self.siblings.keep_up(taken.certain)

    def _drop_next(self) -> None:
        if self._next is not None:
            self._runner.discard(self._next[1])
            self._next = None

    def _take_next(self, everything: bool) -> tuple[Decision | None, Any]:
        """The decision that was made ahead, or one now. What was begun ahead of a trial was begun for another plan."""
        decision, prepared = self._next or (None, None)
        self._next = None
        epoch = self.log.manifest.epoch + 1
        if decision is not None and decision.epoch != epoch:  # siblings were faster
            self._runner.discard(prepared)
            decision = prepared = None
        if decision is None and self.siblings is not None:
            decision = self.siblings.decided(epoch)
        waiting = self.trials.waiting
        if waiting is not None and prepared is not None:
            self._runner.discard(prepared)
            prepared = None
        if decision is None and self._may_decide and not (waiting is not None and waiting.swaps and not self.input.half_chosen):
            decision = self._agreed(self.decide(epoch, everything))
        return decision, prepared

    @contextlib.contextmanager
    def _fenced_first(self) -> Iterator[None]:
        """What a replaced run misses was collected by its successor: that is no corruption, and trying again does not help."""
        try:
            yield
        except Retryable:
            with contextlib.suppress(Retryable):
                self.log.check_owner()
            raise
        except Corrupted:
            self.log.check_owner(attempts=_EPOCH_ATTEMPTS)  # no answer just now must not make a replaced run look like a corrupted one
            raise

    def _rest(self) -> None:
        """Without input nothing is appended, so that a replaced run would not notice, and seem to run for ever."""
        with contextlib.suppress(Retryable):  # the next look tells
            self.log.check_owner()
        if self.siblings is not None:
            self.siblings.stand_in(wait=False)
            self.siblings.cohort.mind_leader(self.log.manifest.epoch)
        self.housekeeping.do(idle=True)
        self.resting()

    def decide(self, epoch: int, everything: bool) -> Decision | None:
        decision = self.input.choose(epoch, everything)
        return None if decision is None else self.timed_for(decision)

    def _decide_without_input(self, flush: bool) -> Decision | None:
        """An epoch for what is due by event time alone, or because a partition or source that held it back is idle now, or gone."""
        timed, manifest, now = self._parts.timed, self.log.manifest, self.input.now()
        if not timed:
            return None
        epoch = manifest.epoch + 1
        late, evict = lates(timed, manifest, epoch), evictions(timed, manifest, now)
        heard = heard_from(manifest.times, self._going_on())
        then = evictions(timed, replace(manifest, times=self._parts.times_after(manifest, heard, {}, now)), now)
        due = anything_due(timed, manifest, late, evict, now) or (then != evict and anything_due(timed, manifest, evict, then, now))
        if due or (flush and anything_open(timed, manifest)):
            return Decision(epoch, now, (), {}, late=late, flush=flush and not due)
        return None

    def _look_ahead(self, current: Decision, everything: bool) -> None:
        """Decide the next epoch early and begin it, where input for a whole one is waiting. A flow that keeps up does better to wait.

        Not beside a flush: what is late after it is known when it is over.
        """
        if current.flush or not self._work_ahead or not self.trials.quiet or not self.input.backlog():
            return
        with contextlib.suppress(Retryable):  # it is only ahead of time: what fails here is done, or reported, when its turn comes
            decision = None if self.siblings is None else self.siblings.decided(current.epoch + 1)
            if decision is None and self._may_decide:
                decision = self._agreed(self.decide(current.epoch + 1, everything))
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
                except Unavailable:  # the run holds: it says so, hears a stop, and does not waste jobs on a store that is away
                    raise
                except Retryable:
                    if last:
                        raise
            self._runner.recover()
            self._clock.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")

    def _begin(self, decision: Decision, prepared: Any, last: bool) -> Callable[[], Outcome] | None:
        try:
            return self._runner.begin(decision, self._rewritten.view(self.log.manifest), self.routing, prepared)
        except Unavailable:
            raise
        except Retryable:
            if last:
                raise
            return None

    def _entry(self, decision: Decision, outcome: Outcome) -> Json:
        timed, rewritten = self._parts.timed, self._rewritten
        before = rewritten.view(self.log.manifest)
        segments = {name: [ref.to_json() for ref in table.segments] for name, table in rewritten.tables.items()}
        for name, added in outcome.segments.items():
            segments.setdefault(name, []).extend(added)
        evict = evictions(timed, before, decision.now, decision.flush)
        after = {name: self._table_after(name, before, outcome) for name in {*before.tables, *segments}}
        drops = emptied(timed, sorted(after), evict)
        going_on = self._going_on()
        times = self._parts.times_after(before, heard_from(before.times, going_on), outcome.heard, decision.now)
        plan = self._parts.plan
        if self._formers:
            gone = {name: after[name] for name in drops}
            plan = {**plan, "unproven": set_aside(plan["unproven"], self._formers, before, after, gone, decision, outcome, going_on)}
        return {
            "kind": "epoch",
            "epoch": decision.epoch,
            "now": decision.now,
            "plan": plan,
            "splits": [[source, split.payload] for source, split in decision.splits],
            "offsets": decision.offsets,
            "seen": decision.seen,
            "batch": decision.batch,
            "routing": self.routing,
            "asked": self._asked,
            "tables": {name: self._added(name, added, rewritten.tables.get(name)) for name, added in segments.items()},
            "forgets": list(rewritten.forgets),
            "restarts": list(self._setup.restarts),
            "drops": drops,
            "floors": floors(timed, after, evict, decision.now, decision.epoch),
            "quiet": {name: at for name, at in outcome.next_ends.items() if name in before.tables and before.tables[name].quiet != at},
            "times": times,
            "flushed": flushed(timed, before, times, outcome.closed),
            "staged": outcome.staged,
            **({} if self.siblings is None else self.siblings.signed(outcome)),
            "counts": {"epochs": 1, **outcome.counts},
        }

    def _going_on(self) -> dict[str, int | None]:
        """The sources that do not begin anew with this epoch, with the numbers of their partitions where they say so.

        Asked in every epoch: a run may be the first one with fewer partitions, and whether one of its epochs was committed since, and under
        which plan, is nothing that has to be remembered.
        """
        sources = {name: source for name, source in self._parts.sources.items() if name not in self._setup.restarts}
        return {name: getattr(source, "partitions", None) for name, source in sources.items()}

    def _table_after(self, name: str, before: Manifest, outcome: Outcome) -> Table:
        """A table with what an epoch has added to it."""
        kept = self._kept[name]
        table = before.tables.get(name, Table(kept.keys, (), kept.time))
        return replace(table, segments=(*table.segments, *(SegmentRef.from_json(s) for s in outcome.segments.get(name, ()))))

    def _added(self, name: str, segments: list[Any], rewritten: Table | None) -> Json:
        """What an entry says of a table that has new segments. One that is rewritten begins where it is over already."""
        kept = self._kept[name]
        ends = {} if kept.time is None else {"time": kept.time, **({} if rewritten is None else {"floor": rewritten.floor})}
        return {"keys": kept.keys, "segments": segments, **ends}

    def publish(self, manifest: Manifest, sinks: Sequence[str] | None = None) -> None:
        """Make the last epoch's output visible, of some sinks or of all."""
        again = self._check_owner if self.siblings is None else self.siblings.look_again
        work = partial(publish, self._store, self._in_force.sinks, manifest, sinks)
        self.patience.persevere(work, again, self._let_others_lead, self._leaves)
        if sinks is None:
            self._published = manifest.epoch

    def _check_owner(self) -> None:
        """Fenced where another run has replaced this one: then it is that one's to publish."""
        with contextlib.suppress(Retryable):
            self.log.check_owner()

    def _leaves(self) -> bool:
        return self.stops() or (self.siblings is not None and self.siblings.cohort.is_leaving)

    def _let_others_lead(self) -> None:
        """What does not answer us may answer another replica."""
        if self.siblings is not None:
            self.siblings.cohort.step_down()
