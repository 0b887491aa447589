"""The first epochs under a changed plan: tried before they are committed, and taken back where they fail.

A *setup* is all that an epoch is run with: a plan's parts, what the runner knows of it, cursors and routing. A *trial* brings a new one.
The loop asks here, between two epochs, whether there is one:

1. what it needs is written: the packed plan, the request, and state that is rewritten for it
2. the loop has its setup from now on; kept sources, sinks and routing tables are the same objects
3. the decision that was due runs under it, watched: an error in changed code is no dead letter, and a deadline holds
4. well: the epoch is committed, which puts the new plan in force; the verdict is recorded
5. not well: the setup before is back, the same decision runs under it, and who asked is told why

An epoch in which no row came to changed code proves nothing: then the trial goes on until some have come, and is taken back as in 5.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from meander.clock import Clock
from meander.epochs.attempts import Attempts
from meander.epochs.decision import Decision, Outcome
from meander.epochs.decisions import Decisions
from meander.epochs.in_force import InForce
from meander.epochs.input import Input
from meander.epochs.parts import Parts, in_force
from meander.epochs.runner import Program
from meander.epochs.setup import Once, Rewritten, Setup
from meander.epochs.siblings import Siblings
from meander.errors import Fenced, MeanderError, Rejected, Retryable, SparkGone, Unavailable
from meander.plan.change.options import Guard
from meander.state.log import Log
from meander.state.manifest import Json, Manifest, operator_of

_ATTEMPTS = 2
_LONGEST = 16
"""Epochs with rows after which a change is taken for proven to which none of them came: nothing is begun ahead of one on probation."""


class Proposal(Protocol):
    """A modification that is asked for, to its trial. ``epochs.modification`` implements it."""

    def renew(self) -> Trial | None:
        """The same request on the plan in force, where that is not the one that the trial was made of."""

    def persist(self, epoch: int) -> tuple[Parts, Program]:
        """Write down what must be there before the epoch. The parts and the program say where it is."""

    def rewrite(self, manifest: Manifest) -> Rewritten:
        """The state as the first epoch of the new plan finds it."""

    def note_debts(self, former: Json) -> Json:
        """The plan before, as log entries have it, with the operators that owe windows when this change is taken back."""

    def accepted(self, epoch: int, seconds: float) -> Any:
        """The epoch is committed: record it. The result is for whoever asked."""

    def rejected(self, epoch: int, why: str) -> None:
        """The plan before goes on: record it."""


class WayBack(Protocol):
    """How a modification that is in force, and not proven, is taken back."""

    def restore(self, former: Json, setup: Setup) -> Setup:
        """The setup before, as the log now has its plan."""

    def reverted(self, epoch: int, why: str) -> None:
        """The plan before is back: record it."""


@dataclass
class Trial:
    """A modification that is tried, or on probation."""

    parts: Parts
    program: Program | None
    """None where it is in force."""
    watched: frozenset[str]
    """Operators whose code is new."""
    way_back: WayBack
    proposal: Proposal | None = None
    """None after a restart, when it is in force."""
    restarts: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    """Sources that are others than before, new, or gone."""
    guard: Guard | None = None
    patience: float = 60.0
    reversible: bool = True
    """Whether it can be taken back after an epoch without rows."""
    lasting: frozenset[str] = frozenset()
    """Operators that store in another way than before: once one of them has stored something the change cannot be taken back."""
    sooner: frozenset[str] = frozenset()
    """Operators whose marks or rows may be others than before: once one of them has refused a row as late, or has parted one from a
    session or window that had closed, there is no way back either: the plan before might have done otherwise."""
    epochs: int = 0
    """Those with rows that it was on probation in."""
    tried: frozenset[str] = frozenset()
    """The watched operators that rows have come to."""
    done: Future[Any] = field(default_factory=Future)
    began: float = 0.0
    former: Setup | None = None
    """What to go back to; set once the trial's own setup is in force."""
    earlier: Trial | None = None
    """One before it that no row had come to either."""


class EpochHost(Protocol):
    """A loop, as far as trials need it: it runs epochs, and commits them."""

    log: Log
    input: Input
    in_force: InForce
    decisions: Decisions
    attempts: Attempts
    siblings: Siblings

    def finish(self, decision: Decision, outcome: Outcome, began: float) -> bool:
        """Commit an epoch that has run since ``began``, and publish it. False where a sibling has committed it."""


class Trials:
    """The trials of one loop, one at a time. In the loop's thread, between two epochs."""

    def __init__(self, loop: EpochHost, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self.waiting: Trial | None = None
        """Asked for, and not begun."""
        self._unproven: Trial | None = None
        """In force, although no row has come since."""
        self.astray = False
        """Whether a trial was broken off, so that the log alone says what is in force."""

    def propose(self, trial: Trial) -> None:
        """Try this with the next epoch. From the loop's thread."""
        if self.waiting is not None:
            self._refuse(self.waiting, "another modification came before it was tried")
        trial.began = self._clock.monotonic()
        self.waiting = trial

    def resume(self, trial: Trial) -> None:
        """After a restart: a plan is in force that no row had come to yet."""
        self._unproven = trial
        in_force = self._loop.in_force
        in_force.watch(trial.watched)
        in_force.mark_plan(in_force.plan["unproven"], _formers(trial))

    def withdraw(self, trial: Trial) -> bool:
        """Nobody waits for it any more: whether it had not begun."""
        if self.waiting is None or self.waiting.done is not trial.done:  # it may have been renewed
            return False
        self.waiting = None
        return True

    def forget(self) -> None:
        """Nothing is on probation, as far as is known here; what waits has not begun."""
        self._unproven, self.astray = None, False

    @property
    def quiet(self) -> bool:
        """Whether epochs can be begun ahead."""
        return self.waiting is None and self._unproven is None

    def run(self, decision: Decision | None, everything: bool) -> bool:
        """Run the epoch that is due, where there is a trial for it: whether there was."""
        trial = self._renewed()
        siblings = self._loop.siblings
        if trial is not None and not _must_wait(trial, decision, siblings.replicated):
            if siblings.replicated and decision is not None:
                trial.reversible = False  # proven by this epoch or not at all: what comes next may be another replica's
                if not siblings.claim(decision.epoch, trial.patience):
                    return True  # with the next one, then
            self.waiting = None
            with self._unless_broken_off():
                self._try(trial, decision, everything)
            return True
        if self._unproven is not None and decision is not None:
            with self._unless_broken_off():
                self._prove(self._unproven, decision)
            return True
        return False

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _renewed(self) -> Trial | None:
        """The trial that waits. A sibling may have changed the plan since it was asked for: tried as it was, it would undo that change."""
        trial = self.waiting
        if trial is None:
            return None
        assert trial.proposal is not None
        try:
            new = trial.proposal.renew()
        except MeanderError as error:
            self.waiting = None
            self._refuse(trial, f"another modification came into force before it was tried, and now it cannot be: {error}")
            return None
        if new is not None:
            new.done, new.began = trial.done, trial.began
            self.waiting = new
        return self.waiting

    @contextlib.contextmanager
    def _unless_broken_off(self) -> Iterator[None]:
        self.astray = True
        yield
        self.astray = False

    def _try(self, trial: Trial, decision: Decision | None, everything: bool) -> None:
        loop, now, epoch = self._loop, self._loop.in_force, self._loop.log.manifest.epoch + 1
        proposal = trial.proposal
        assert proposal is not None
        trial.earlier = self._unproven
        if self._unproven is not None:  # its code was not tried either
            trial.watched |= self._unproven.watched & trial.parts.record["operators"].keys()
            trial.lasting |= self._unproven.lasting
            trial.sooner |= self._unproven.sooner
        old: Outcome | None = None
        before: Setup | None = None
        began = self._clock.monotonic()
        try:
            trial.parts, trial.program = proposal.persist(epoch)
            if trial.guard is not None and decision is not None:
                old = loop.attempts.run(decision, most=3)
            setup = self._setup(trial)
            before = now.install(setup, trial.watched)
            setup.parts.open_sinks(before.parts)
            if trial.swaps:
                decision = loop.decisions.from_input(epoch, everything)
            tried = now.marked(decision or Decision(epoch, loop.input.now(), (), {}))
            outcome = self._watched(trial, tried)
            if old is not None and trial.guard is not None:
                self._ask(trial.guard, old, outcome)
                loop.attempts.throw_away(old)
        except Fenced:
            trial.done.set_exception(Rejected("another run has taken the store over: nothing was changed"))
            raise
        except SparkGone as error:  # it says nothing about the change, which has no verdict and can be asked for again
            trial.done.set_exception(error)
            raise
        except Exception as error:
            why = _why(error)
            if before is not None:
                self._go_back(before, trial.swaps)
            proposal.rejected(epoch, why)
            self._refuse(trial, why)
            rest = _without(decision, trial.swaps)
            if rest is not None and self._unproven is not None:
                self._prove(self._unproven, now.marked(rest))
            elif rest is not None:
                rest = now.marked(rest)
                loop.finish(rest, old or loop.attempts.run(rest), began)
            return
        trial.former = before
        proven = not trial.watched or not trial.reversible or _is_proven(trial, outcome)
        was = loop.log.manifest
        marks = {"plan": proposal.note_debts(before.parts.plan), "watched": sorted(trial.watched), "lasting": sorted(trial.lasting)}
        marks["sooner"] = sorted(trial.sooner)
        floors = {name: table.floor for name, table in was.tables.items() if table.time is not None}
        marks |= {"times": was.times, "flushed": was.flushed, "floors": floors, "aside": {}}
        now.mark_plan(*((None, ()) if proven else (marks, _formers(trial))))
        try:
            is_in_force = loop.finish(tried, outcome, began) or in_force(loop.log.manifest.plan) == in_force(trial.parts.plan)
        except Retryable as error:
            trial.done.set_exception(Retryable(f"whether the modification is in force cannot be said now: {error}"))
            raise
        if not is_in_force:
            if in_force(now.plan) == in_force(trial.parts.plan):  # otherwise the plan of who was faster is here already
                self._go_back(before, trial.swaps)
            why = "other replicas have gone on without it: it took too long, or a change of theirs came first"
            proposal.rejected(epoch, why)
            self._refuse(trial, why)
            return
        now.settle()
        _close(before, trial.swaps)
        answer = proposal.accepted(epoch, self._clock.monotonic() - trial.began)
        self._unproven = None if proven else trial
        if proven:
            now.watch(frozenset())
        trial.done.set_result(answer)

    def _prove(self, trial: Trial, decision: Decision) -> None:
        """The plan is in force, and for the first time rows may come to it."""
        loop, now, began = self._loop, self._loop.in_force, self._clock.monotonic()
        try:
            outcome = self._watched(trial, decision)
        except (Fenced, Unavailable, SparkGone):  # these say nothing about the change
            raise
        except Exception as error:
            why = _why(error)
            earlier = self._unproven = trial.earlier
            assert trial.former is not None
            was = now.plan["unproven"]
            back = trial.way_back.restore(was["plan"], trial.former)
            back = replace(back, routing={**back.routing, **_kept(now.routing, back.routing)})
            back = replace(back, cursors=loop.input.cursors)  # the sources are the same, and may have been opened anew
            once = replace(back.once, rewritten=now.as_if_never(was, back.parts))
            back = replace(back, parts=replace(back.parts, plan=was["plan"]), once=once)
            mine = now.install(back, frozenset() if earlier is None else earlier.watched, _formers(earlier))
            back.parts.open_sinks(mine.parts)  # after a restart they were not opened yet
            trial.way_back.reverted(decision.epoch, why)
            decision = now.marked(decision)
            if earlier is not None:
                self._prove(earlier, decision)
            else:
                loop.finish(decision, loop.attempts.run(decision), began)
            now.settle()
            return
        if _is_proven(trial, outcome):
            self._unproven = None
            now.watch(frozenset())
            now.mark_plan(None, ())
        loop.finish(decision, outcome, began)

    def _setup(self, trial: Trial) -> Setup:
        loop = self._loop
        manifest = loop.log.manifest
        cursors = {}
        for name, source in trial.parts.sources.items():
            kept = loop.input.cursors.get(name) if name not in trial.swaps else None
            cursors[name] = kept or loop.input.open(name, source, anew=name in trial.restarts)
        routing = {name: loop.in_force.routing.get(name) or loop.in_force.route_new() for name in trial.parts.keyed}
        assert trial.proposal is not None
        made = trial.proposal.rewrite(manifest)
        return Setup(trial.parts, trial.program, routing, cursors, Once(lambda _: made, trial.restarts))

    def _watched(self, trial: Trial, decision: Decision) -> Outcome:
        attempts, deadline = self._loop.attempts, self._clock.monotonic() + trial.patience
        for attempt in range(_ATTEMPTS):
            try:
                return _within(deadline - self._clock.monotonic(), lambda: attempts.run(decision, most=1), attempts.runner.abandon)
            except Retryable:
                attempts.runner.recover()  # where Spark is gone it says so
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _ask(self, guard: Guard, old: Outcome, new: Outcome) -> None:
        frames = [self._loop.attempts.output(outcome) for outcome in (old, new)]
        verdict = guard(*frames)
        if verdict is not None and not verdict:
            raise Rejected(f"the guard said no: it returned {verdict!r}")

    def _go_back(self, before: Setup, swaps: tuple[str, ...]) -> None:
        loop = self._loop
        now = loop.input.cursors  # a source that is the same may have been opened anew meanwhile
        cursors = {name: cursor if name in swaps else now.get(name, cursor) for name, cursor in before.cursors.items()}
        watched = frozenset() if self._unproven is None else self._unproven.watched
        mine = loop.in_force.install(replace(before, cursors=cursors), watched, _formers(self._unproven))
        _close(mine, swaps)

    def _refuse(self, trial: Trial, why: str) -> None:
        trial.done.set_exception(Rejected(f"the modification was rejected, and the plan before it is back: {why}"))


def _within(seconds: float, work: Callable[[], Outcome], abandon: Callable[[], None]) -> Outcome:
    """Something that may never end, for at most so long. What it does when nobody waits any more has no effect."""
    found: Future[Outcome] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="meander-trial", daemon=True).start()
    try:
        return found.result(max(0.0, seconds))
    except TimeoutError as error:
        if found.done():
            raise
        abandon()
        raise Rejected("its first epoch has not ended in time") from error


def _must_wait(trial: Trial, decision: Decision | None, replicated: bool) -> bool:
    """Whether an epoch comes first: a guard has nothing to compare yet, or what was decided is of sources that will be others.

    Replicas try nothing without rows: afterwards nobody could take it back for all.
    """
    nothing = decision is None or not decision.splits
    return ((trial.guard is not None or replicated) and nothing) or (bool(trial.swaps) and decision is not None)


def _is_proven(trial: Trial, outcome: Outcome) -> bool:
    """Whether rows have come to all that is new, or there is no way back."""
    if not trial.lasting.isdisjoint(operator_of(table) for table in outcome.segments) or not trial.sooner.isdisjoint(outcome.late):
        return True
    if outcome.counts.get("rows_in", 0):
        trial.epochs += 1
        trial.tried |= outcome.tried
    return trial.watched <= trial.tried or trial.epochs >= _LONGEST


def _formers(trial: Trial | None) -> tuple[Parts, ...]:
    """What may be gone back to from a change on probation, the last first."""
    if trial is None or trial.former is None:
        return ()
    return (trial.former.parts, *_formers(trial.earlier))


def _close(setup: Setup, sources: tuple[str, ...]) -> None:
    """Nobody reads on with these."""
    for name in sources:
        if name in setup.cursors:
            setup.cursors[name].close()


def _without(decision: Decision | None, swaps: tuple[str, ...]) -> Decision | None:
    """A decision without what sources gave that are not in force; None where nothing is left."""
    if decision is None or not swaps:
        return decision
    splits = tuple((name, split) for name, split in decision.splits if name not in swaps)
    offsets: dict[str, Json] = {name: offset for name, offset in decision.offsets.items() if name not in swaps}
    seen = {name: names for name, names in decision.seen.items() if name not in swaps}
    return replace(decision, splits=splits, offsets=offsets, seen=seen) if splits else None


def _kept(now: Mapping[str, list[int]], then: Mapping[str, list[int]]) -> dict[str, list[int]]:
    return {name: table for name, table in now.items() if name in then}


def _why(error: BaseException) -> str:
    if isinstance(error, (Rejected, Retryable)) or "Traceback (most recent call last)" in str(error):
        return str(error)
    return f"{error}\n{''.join(traceback.format_exception(error))}"
