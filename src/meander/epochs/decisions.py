"""Which epoch comes next, and what it is run on: step 1 of an epoch, and of the one after it while the first one runs."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from meander.coordinate.marks import Marks, anything_due, anything_open, evictions
from meander.coordinate.watermarks import heard_from
from meander.epochs.ahead import Ahead, Begun
from meander.epochs.decision import Decision
from meander.epochs.in_force import InForce
from meander.epochs.input import Input
from meander.epochs.siblings import Siblings
from meander.errors import Retryable
from meander.state.log import Log


class Decisions:
    """One loop's. In its thread."""

    def __init__(self, log: Log, in_force: InForce, input: Input, *, ahead: Ahead, siblings: Siblings, work_ahead: bool) -> None:
        self._log, self._in_force, self._input, self._ahead, self._siblings = log, in_force, input, ahead, siblings
        self.work_ahead = work_ahead

    def next(self, everything: bool, *, trial_waits: bool = False, input_waits: bool = False) -> Begun | None:
        """The decision that was made ahead, or one now. None where there is no input.

        ``trial_waits``: what was begun ahead of a trial was begun for another plan. ``input_waits``: the trial's sources are others.
        """
        epoch = self._log.manifest.epoch + 1
        begun = self._ahead.take(epoch)
        if begun is not None:
            return self._ahead.without_work(begun) if trial_waits else begun
        decision = self._siblings.decided(epoch)
        if decision is None and self._siblings.may_decide and (self._input.half_chosen or not input_waits):
            decision = self._agreed(self.from_input(epoch, everything))
        return None if decision is None else Begun(decision)

    def without_input(self, flush: bool) -> Begun | None:
        """An epoch for what is due without input, or, with ``flush``, for what is open."""
        if not self._siblings.may_decide:
            return None
        decision = self._agreed(self._due(flush))
        return None if decision is None else Begun(decision)

    def from_input(self, epoch: int, everything: bool) -> Decision | None:
        """This loop's own decision: nothing is agreed on yet."""
        decision = self._input.choose(epoch, everything)
        return None if decision is None else self._in_force.marked_ahead(decision)

    def look_ahead(self, current: Decision, everything: bool) -> None:
        """Decide the next epoch early and begin it, where input for a whole one is waiting. A flow that keeps up does better to wait.

        Not beside a flush: what is late after it is known when it is over.
        """
        if current.flush or not self.work_ahead or not self._input.backlog():
            return
        with contextlib.suppress(Retryable):  # it is only ahead of time: what fails here is done, or reported, when its turn comes
            decision = self._siblings.decided(current.epoch + 1)
            if decision is None and self._siblings.may_decide:
                decision = self._agreed(self.from_input(current.epoch + 1, everything))
            if decision is not None:
                self._ahead.begin(decision, self._in_force.routing)

    @property
    def begun(self) -> Begun | None:
        """The epoch that is begun ahead."""
        return self._ahead.begun

    def drop(self) -> None:
        """Nothing is begun any more."""
        self._ahead.drop()

    def _agreed(self, mine: Decision | None) -> Decision | None:
        """The decision that counts, among replicas."""
        return None if mine is None else self._siblings.agree(mine)

    def _due(self, flush: bool) -> Decision | None:
        """An epoch for what is due by event time alone, or because a partition or source that held it back is idle now, or gone."""
        parts, manifest, now = self._in_force.parts, self._log.manifest, self._input.now()
        if not parts.timed:
            return None
        epoch, timed = manifest.epoch + 1, parts.timed
        marks = Marks.of(timed, manifest, epoch, now)
        heard = heard_from(manifest.times, self._in_force.basis().going_on)
        then = evictions(timed, replace(manifest, times=parts.times_after(manifest, heard, {}, now)), now)
        due = anything_due(timed, manifest, marks.late, marks.evict, now)
        due = due or (then != marks.evict and anything_due(timed, manifest, marks.evict, then, now))
        if due or (flush and anything_open(timed, manifest)):
            return Decision(epoch, now, (), {}, flush=flush and not due, marks=marks.known_ahead())
        return None
