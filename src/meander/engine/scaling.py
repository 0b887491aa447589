"""What the autoscaler is told of every epoch, and doing what it says. The decisions themselves are ``coordinate``'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meander.clock import Clock
from meander.coordinate.autoscaling import Memory, Scaling, decide
from meander.coordinate.capacity import EpochFacts, offered_rate
from meander.coordinate.routing import rebalance
from meander.engine.loop import EpochDone, Loop
from meander.settings import Autoscale

_FORGET = 0.9


@dataclass
class LoadMeter:
    """What each key group of each operator costs, lately: seconds of work per epoch, older epochs counting less and less."""

    load: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def add(self, found: Mapping[str, npt.NDArray[np.float64]]) -> None:
        for operator, seconds in found.items():
            before = self.load.get(operator)
            self.load[operator] = seconds if before is None else _FORGET * before + (1 - _FORGET) * seconds

    def of(self, operator: str) -> list[float] | None:
        found = self.load.get(operator)
        return None if found is None or not found.any() else found.tolist()


class Autoscaler:
    """Listens to a loop's epochs, and reroutes its operators when the load asks for it. In the loop's own thread, between two epochs."""

    def __init__(
        self,
        settings: Autoscale,
        loop: Loop,
        meter: LoadMeter,
        stages: Mapping[str, tuple[str, ...]],
        cores: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._settings, self._loop, self._meter, self._stages, self._cores, self._clock = settings, loop, meter, stages, cores, clock
        self._memory = Memory()
        self._last: tuple[float, int] | None = None
        self.last = Scaling()
        """The newest decision, for status."""

    def __call__(self, done: EpochDone) -> None:
        now = self._clock.monotonic()
        waiting = self._loop.waiting()
        before, backlog = self._last or (now - sum(done.seconds.values()), waiting)
        self._last = (now, waiting)
        records = done.outcome.counts.get("rows_in", 0)
        facts = EpochFacts(
            at=now,
            seconds=sum(done.seconds.values()),
            records=records,
            offered=offered_rate(records, backlog, waiting, now - before),
            backlog=waiting,
            cores=self._cores(),
            stages=done.outcome.stages,
            key_groups=done.manifest.key_groups,
        )
        scaling, self._memory = decide(self._settings, self._memory, facts)
        if scaling.slots or scaling.notes:
            self.last = scaling
        for stage, slots in scaling.slots.items():
            for operator in self._stages[stage]:
                self._loop.reroute(operator, rebalance(self._loop.routing[operator], slots, self._meter.of(operator)))
