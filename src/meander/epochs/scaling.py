"""Passes the facts of every epoch to the autoscaler, and carries its decisions out. The decisions
themselves are in ``coordinate``.

If executors may be requested (``crew.py``), slots that need more executors wait until these are
introduced; executors without slots are drained and released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from meander.clock import Clock
from meander.coordinate.autoscaling import Memory, Scaling, decide
from meander.coordinate.capacity import EpochFacts, StageFacts, offered_rate
from meander.coordinate.routing import rebalance, slots_of
from meander.epochs.crew import Crew
from meander.epochs.decision import EpochDone
from meander.epochs.events import LoopEvents
from meander.epochs.loop import Loop
from meander.settings import Autoscale

_FORGET = 0.9
_IDLE_EVERY = 1.0


@dataclass
class LoadMeter:
    """The recent load of each key group of each operator: seconds of work per epoch, with less and
    less weight for older epochs."""

    load: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def add(self, found: Mapping[str, npt.NDArray[np.float64]]) -> None:
        for operator, seconds in found.items():
            before = self.load.get(operator)
            self.load[operator] = seconds if before is None else _FORGET * before + (1 - _FORGET) * seconds

    def of(self, operator: str) -> list[float] | None:
        found = self.load.get(operator)
        return None if found is None or not found.any() else found.tolist()


class Autoscaler(LoopEvents):
    """Listens to a loop's epochs, and reroutes its operators when the load asks for it. In the loop's own thread, between two epochs."""

    def __init__(
        self,
        settings: Autoscale,
        loop: Loop,
        meter: LoadMeter,
        stages: Mapping[str, tuple[str, ...]],
        cores: Callable[[], int],
        clock: Clock,
        crew: Crew | None = None,
    ) -> None:
        self._settings, self._loop, self._meter, self._stages, self._cores, self._clock = settings, loop, meter, stages, cores, clock
        self._crew = crew
        self._memory = Memory()
        self._last: tuple[float, int] | None = None
        self._facts: EpochFacts | None = None
        self._pending: dict[str, int] = {}
        """Slots that were decided on and wait for executors."""
        self._since = 0.0
        self._too_many_since: float | None = None
        self.last = Scaling()
        """The newest decision, for status."""

    def restage(self, stages: Mapping[str, tuple[str, ...]]) -> None:
        """Another plan is in force: forget the decisions for the stages of the old one."""
        self._stages, self._pending, self._memory, self._facts = stages, {}, Memory(), None

    @property
    def executors(self) -> list[str]:
        """The latest actions on executors."""
        return [] if self._crew is None else self._crew.events

    def epoch_done(self, done: EpochDone) -> None:
        records = done.outcome.counts.get("rows_in", 0)
        self._tell(sum(done.seconds.values()), records, done.outcome.stages, done.manifest.key_groups)

    def idle(self) -> None:
        """No input: a flow that has nothing to do needs less, too."""
        if self._facts is not None and self._clock.monotonic() - self._facts.at >= _IDLE_EVERY:
            stages = tuple(replace(stage, records=0, busy=0.0, busiest=0.0) for stage in self._facts.stages)
            self._tell(0.0, 0, stages, self._facts.key_groups)

    def _tell(self, seconds: float, records: int, stages: tuple[StageFacts, ...], key_groups: int) -> None:
        now = self._clock.monotonic()
        waiting = self._loop.input.waiting()
        before, backlog = self._last or (now - seconds, waiting)
        self._last = (now, waiting)
        self._facts = EpochFacts(
            at=now,
            seconds=seconds,
            records=records,
            offered=offered_rate(records, backlog, waiting, now - before),
            backlog=waiting,
            cores=self._cores() if self._crew is None else max(self._cores(), self._crew.reach(self._settings.max)),
            stages=stages,
            key_groups=key_groups,
        )
        scaling, self._memory = decide(self._settings, self._memory, self._facts)
        if scaling.slots or scaling.notes:
            self.last = scaling
        if scaling.slots:
            self._pending, self._since = dict(scaling.slots), now
        if self._pending:
            self._carry_out(now)
        if self._crew is not None:
            self._let_go(self._crew, now)

    def _carry_out(self, now: float) -> None:
        slots = self._pending
        if self._crew is not None and self._largest(slots) > self._largest({}):
            room = self._crew.room(self._largest(slots), now - self._since)
            if room is None:  # they may still come
                return
            slots = {stage: min(number, max(room, self._slots(stage))) for stage, number in slots.items()}
        elif self._largest(slots) < self._largest({}):
            self._too_many_since = now - self._settings.shrink_after  # it was waited for before this was decided
        for stage, number in slots.items():
            for operator in self._stages[stage]:
                self._loop.reroute(operator, rebalance(self._loop.routing[operator], number, self._meter.of(operator)))
        self._pending = {}

    def _let_go(self, crew: Crew, now: float) -> None:
        """Executors without need for them, for as long as slots are given before there are fewer."""
        epoch, slots = self._loop.log.manifest.epoch, self._largest(self._pending)
        if not crew.surplus(slots):
            self._too_many_since = None
        elif self._too_many_since is None:
            self._too_many_since = now
        elif now - self._too_many_since >= self._settings.shrink_after:
            crew.thin_out(slots, epoch)
            self._too_many_since = None
        crew.tend(epoch)

    def _largest(self, pending: Mapping[str, int]) -> int:
        return max((pending.get(stage, self._slots(stage)) for stage in self._stages), default=1)

    def _slots(self, stage: str) -> int:
        return max(slots_of(self._loop.routing[operator]) for operator in self._stages[stage])
