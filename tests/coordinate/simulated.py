"""A flow on a simulated clock: records come, epochs take what is there, slots work at a rate. Enough to scale."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meander.clock import FakeClock
from meander.coordinate.autoscaling import Memory, Scaling, decide
from meander.coordinate.capacity import EpochFacts, StageFacts, offered_rate
from meander.settings import Autoscale


@dataclass
class SimulatedStage:
    name: str
    rate: float
    """Records per second and slot, when it works."""
    slots: int
    ratio: float = 1.0
    """Records that come into it per record of the input."""


@dataclass
class System:
    """``arriving`` gives records per second at a time; ``noise`` is the relative amplitude of everything measured."""

    settings: Autoscale
    stages: Sequence[SimulatedStage]
    arriving: Callable[[float], float]
    seed: int = 0
    noise: float = 0.0
    epoch_cost: float = 0.06
    trigger: float = 0.0
    hiccup: float = 1.5
    cores: int = 64
    limit: int | None = None
    obeys: bool = True
    clock: FakeClock = field(default_factory=FakeClock)
    memory: Memory = field(default_factory=Memory)
    backlog: float = 0.0
    changes: list[tuple[float, Scaling]] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)
    largest_backlog: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._cold = 0
        self._last = 0.0

    def run(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self._epoch()

    def slots(self) -> dict[str, int]:
        return {stage.name: stage.slots for stage in self.stages}

    def keeps_up(self) -> bool:
        """Whether the slots can do what comes now."""
        return self.load() < 1

    def load(self) -> float:
        now = self.arriving(self.clock.monotonic())
        return sum(now * stage.ratio / stage.rate / stage.slots for stage in self.stages)

    def _epoch(self) -> None:
        began, before = self._last, self.backlog
        taken = min(int(self.backlog), self.limit or int(self.backlog))
        slow = 1.0
        seconds = self._about(self.epoch_cost)
        if self._cold:
            slow, seconds = 1.5, seconds + (self.hiccup if self._cold == 3 else 0.0)
            self._cold -= 1
        facts = []
        for stage in self.stages:
            records = int(taken * stage.ratio)
            busy = self._about(records / stage.rate) * slow
            longest = busy / stage.slots * (1 + 0.05 * self._random.random() if stage.slots > 1 else 1)
            seconds += longest
            facts.append(StageFacts(stage.name, records, busy, stage.slots, longest))
        pause = max(0.0, self.trigger - seconds)
        arrived = self._about(self.arriving(self.clock.monotonic())) * (seconds + pause)
        self.clock.sleep(seconds + pause)
        self.backlog += arrived - taken
        self.largest_backlog = max(self.largest_backlog, self.backlog)
        at = self._last = self.clock.monotonic()
        offered = offered_rate(taken, int(before), int(self.backlog), at - began)
        epoch = EpochFacts(at, seconds, taken, offered, int(self.backlog), self.cores, tuple(facts), self.limit)
        scaling, self.memory = decide(self.settings, self.memory, epoch)
        self.notes.extend((at, note) for note in scaling.notes)
        if scaling.slots:
            self.changes.append((at, scaling))
            if self.obeys:
                self._cold = 3
                for stage in self.stages:
                    stage.slots = scaling.slots.get(stage.name, stage.slots)

    def _about(self, value: float) -> float:
        return value * (1 + self.noise * self._random.uniform(-1, 1))
