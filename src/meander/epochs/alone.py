"""A loop whose flow has no other replicas: it decides for itself, and mends itself when something did not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from meander.clock import Clock
from meander.epochs.catching_up import CatchingUp
from meander.epochs.decision import Decision, Outcome
from meander.epochs.events import Listeners
from meander.epochs.in_force import InForce
from meander.epochs.maintenance import Housekeeping
from meander.epochs.patience import Patience
from meander.epochs.probation import Trials
from meander.epochs.publish import Publisher
from meander.epochs.requests import Requests
from meander.errors import Retryable, Unavailable
from meander.state.log import Log, Taken
from meander.state.manifest import Json, Manifest


class Mended(Protocol):
    """A loop, as far as it must be mended after a failure."""

    log: Log
    in_force: InForce
    events: Listeners
    requests: Requests
    patience: Patience
    publisher: Publisher
    catching_up: CatchingUp
    trials: Trials
    housekeeping: Housekeeping


class Alone:
    """No other replicas. Implements ``Siblings``."""

    replicated = False
    may_decide = True
    is_leaving = False
    waits_for: type[Retryable] = Unavailable

    def __init__(self, loop: Mended, clock: Clock) -> None:
        self._loop, self._clock = loop, clock

    @property
    def who(self) -> str:
        return f"flow '{self._loop.in_force.plan['flow']}'"

    def persevere(self, step: Callable[..., bool], **options: bool) -> bool:
        """Do a step; where the store does not answer, hold, and go on from where the log is then."""
        return self._loop.patience.persevere(partial(step, **options), self.mend)

    def mend(self) -> None:
        """Whatever was begun is given up; what is committed is published. The log may have an entry of ours that was not answered."""
        loop = self._loop
        with loop.requests.at_work:
            loop.catching_up.recover_runner()
            for entry, before, after in loop.log.news():
                loop.catching_up.take(entry, before, after)
            loop.log.settle()  # before anything is removed that such an entry names
            manifest = loop.log.manifest
            if loop.trials.astray:  # what was tried may be in force or not: the log says
                loop.trials.forget()
                loop.events.plan_unsettled(manifest)
            loop.catching_up.drop()
            loop.housekeeping.undo()
            loop.catching_up.reopen()
            if manifest.epoch != loop.publisher.published:
                loop.publisher.publish(manifest)

    def recover(self) -> None:
        self._loop.publisher.publish(self._loop.log.manifest)

    def publish(self, manifest: Manifest) -> bool:
        self._loop.publisher.publish(manifest)
        return True

    def look_again(self) -> None:
        """Fenced where another run has replaced this one: then it is that one's to publish."""
        with contextlib.suppress(Retryable):
            self._loop.log.check_owner()

    def now(self) -> float:
        return self._clock.now()

    def keeps_house(self) -> bool:
        return True

    def agree(self, mine: Decision) -> Decision | None:
        return mine

    def claim(self, epoch: int, seconds: float) -> bool:
        return True

    def ready_to_commit(self, decision: Decision, outcome: Outcome) -> bool:
        return True

    def is_over(self, decision: Decision) -> bool:
        return False

    def signed(self, outcome: Outcome) -> Json:
        return {}

    def stepping(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def was_faster(self, decision: Decision, outcome: Outcome, taken: Taken) -> bool:
        raise AssertionError("nobody else appends to the log of a run alone") from taken

    def keep_up(self, certain: bool = True) -> None:
        """Nobody else commits anything."""

    def decided(self, epoch: int) -> Decision | None:
        """Nobody else decides."""

    def rerouted(self, operator: str, table: list[int]) -> None:
        """The next epoch's entry says it."""

    def committed(self, entry: Json, by_us: bool) -> None:
        """Nobody waits for it."""

    def rest(self) -> None:
        """Nobody else has anything to do."""

    def step_down(self) -> None:
        """Nobody else could lead."""
