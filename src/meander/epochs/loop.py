"""The driver's loop. ``step`` runs one epoch:

1. decide: every source's cursor offers its next splits; together they are the epoch's input
2. run: tasks write segments and staged output under names of their own attempt
3. commit: one log entry, put if absent; before it nothing has happened, after it everything has
4. publish: the files the entry names become visible; redone on recovery, so it must be idempotent
5. tidy: sources may put away what was read; snapshots, compaction, and removing what no retained epoch needs

While epoch e runs, e+1 is decided and its first stage begun (``ahead.py``), since neither looks at state. It is never committed before e.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from meander.epochs.ahead import Begun
from meander.epochs.decision import Decision, EpochDone, Laps, Outcome
from meander.epochs.entry import epoch_entry, frees_objects
from meander.epochs.fencing import fenced_first
from meander.epochs.wiring import Wired
from meander.errors import Corrupted, Retryable
from meander.state.log import Taken
from meander.state.manifest import Json, Manifest


class Committed(NamedTuple):
    """An epoch that is in the log: its entry, and the manifest before and after it."""

    entry: Json
    before: Manifest
    after: Manifest


class Loop(Wired):
    """One generation's work on a store. Not shared between threads."""

    # -- one epoch ------------------------------------------------------------------------------------------------

    def step(self, everything: bool = False, flush: bool = False) -> bool:
        """Run one epoch if there is input for one, or something is due without. ``flush``: where there is no input, close what is open."""
        with self._at_work(), self.siblings.stepping():
            self.requests.perform()
            self.siblings.keep_up()
            begun = self._decide(everything, flush)
            if self.trials.run(None if begun is None else begun.decision, everything):
                return True
            if begun is None:
                self._rest()
                return False
            self._run_and_finish(begun, lambda: self._look_ahead(begun.decision, everything))
            return True

    def step_if_idle(self) -> bool:
        """A step, unless an epoch runs in another thread: that one may be waiting for ours to end, so ours must not wait for it."""
        if not self.requests.at_work.acquire(blocking=False):
            return False
        try:
            return self.step()
        finally:
            self.requests.at_work.release()

    def run_epoch(self, decision: Decision) -> bool:
        """Run, commit and publish one epoch that somebody else decided."""
        with self._at_work():
            # Numbered and timed here: an epoch without input may have come between the decision and its turn.
            last = self.log.manifest
            decision = self.in_force.marked(replace(decision, epoch=last.epoch + 1, now=max(decision.now, last.now)))
            if not self.trials.run(decision, everything=False):
                self._run_and_finish(Begun(decision), lambda: None)
        return True

    def _run_and_finish(self, begun: Begun, meanwhile: Callable[[], None]) -> None:
        began = self._clock.monotonic()
        outcome = self._run(begun, meanwhile)
        if outcome is not None:
            self.finish(begun.decision, outcome, began)

    def finish(self, decision: Decision, outcome: Outcome, began: float) -> bool:
        """Commit an epoch that has run since ``began``, publish it, and tidy up. False where a sibling has committed it."""
        laps = Laps(self._clock, began)
        laps.end("run")
        committed = self._commit(decision, outcome)
        if committed is None:
            self.housekeeping.do()
            self.events.epoch_done(EpochDone(decision.epoch, decision, outcome, laps.seconds, self.log.manifest))
            return False
        laps.end("commit")
        by_us = self._publish(committed)
        laps.end("publish")
        self._tidy(decision, committed, by_us)
        laps.end("tidy")
        self.events.epoch_done(EpochDone(decision.epoch, decision, outcome, laps.seconds, committed.after))
        return True

    # -- its five steps -------------------------------------------------------------------------------------------

    def _decide(self, everything: bool, flush: bool) -> Begun | None:
        """The input of the next epoch, and its marks. None where there is nothing to do."""
        trial = self.trials.waiting
        swaps = trial is not None and bool(trial.swaps)
        begun = self.decisions.next(everything, trial_waits=trial is not None, input_waits=swaps) or self.decisions.without_input(flush)
        return None if begun is None else begun._replace(decision=self.in_force.marked(begun.decision))

    def _run(self, begun: Begun, meanwhile: Callable[[], None]) -> Outcome | None:
        """What the epoch's tasks write. None where siblings have long committed the epoch, and collected what it reads."""
        try:
            return self.attempts.run(begun.decision, begun.prepared, meanwhile)
        except (Corrupted, Retryable):
            if not self.siblings.is_over(begun.decision):
                raise
            return None

    def _commit(self, decision: Decision, outcome: Outcome) -> Committed | None:
        """Make an epoch's result the log's. None where a sibling has committed it."""
        while self.siblings.ready_to_commit(decision, outcome):
            basis = self.in_force.basis()
            entry = epoch_entry(decision, outcome, basis, self.siblings.signed(outcome))
            try:
                after = self.log.append(entry)
            except Taken as taken:
                if self.siblings.was_faster(decision, outcome, taken):
                    return None
                continue
            self.in_force.committed(entry)
            return Committed(entry, basis.manifest, after)
        return None

    def _publish(self, committed: Committed) -> bool:
        """Make the output visible. False where siblings have gone on from the epoch, and have done so."""
        return self.siblings.publish(committed.after)

    def _tidy(self, decision: Decision, committed: Committed, by_us: bool) -> None:
        """Let go of what the epoch needed, and of what was needed before it."""
        entry, before, after = committed
        self.attempts.runner.settle()
        self.tidy.published(before)
        self.siblings.committed(entry, by_us)
        if frees_objects(entry, before, after):
            self.tidy.dropped(before, after)
        self.input.release(decision.seen)
        self.housekeeping.do()

    # -- beside them ----------------------------------------------------------------------------------------------

    def _look_ahead(self, current: Decision, everything: bool) -> None:
        """Begin the next epoch while this one runs. Not where the plan may be another one by then."""
        if self.trials.quiet:
            self.decisions.look_ahead(current, everything)

    def _rest(self) -> None:
        """Without input nothing is appended, so that a replaced run would not notice, and seem to run for ever."""
        with contextlib.suppress(Retryable):  # the next look tells
            self.log.check_owner()
        self.siblings.rest()
        self.housekeeping.do(idle=True)
        self.events.idle()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with self.requests.at_work, fenced_first(self.log):
            yield
