"""How many slots a load needs, after DS2 (Kalavri et al., OSDI 2018). Pure; called by ``autoscaling``.

The *true rate* of a slot is its number of records per second of work, without the time that it
waits: records / busy seconds. It does not depend on the load, so one measurement says what any load
will need, and the right parallelism of all stages is one step away:

    slots = offered records/s × records into the stage per record offered / (true rate × target utilisation)

DS2 multiplies the output ratios of the stages along the way. An epoch goes through all stages whole and nothing queues between
them, so that the product is simply records into the stage / records into the flow over the same epochs, with any number of inputs.

Two things differ from the pipelined engines that DS2 was made for:

**Stages take turns.** The stages of an epoch run one after the other; each has only a part of the time. With *demand* of a
stage the slots that its work would keep busy all the time, Σ demand / slots over the stages in line must stay below the target.
Slots are given, one by one, to the stage where one more saves most time: that is the smallest sum of slots that will do. With one
stage it is the formula above. A stage that runs beside the others (the first of the next epoch) is a line of its own.

**An epoch has a fixed cost**: scheduling, starting tasks, commit, publication. Busy seconds are
measured inside the tasks and do not contain it. The fixed cost is an epoch's time less that of the
stages in line (the busiest slot of each, since the next stage waits for it). Epochs without a limit
grow until the fixed cost does not matter, at any number of slots, so it does not enter the formula.
Where the sources' limits bound an epoch to n records it does: r records/s are r / n epochs per
second, and their fixed cost is time that no slot can use. The fixed cost of a *task* stays in the
busy time; it makes slots look slower while epochs are small, never faster, and its share falls as
they grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from meander.coordinate.routing import KEY_GROUPS

_LEAST_BUDGET = 0.25
"""The share of the target that slots may always use. More slots cannot make up for fixed costs that
take more than the rest."""


@dataclass(frozen=True)
class StageFacts:
    """The work of one stage in one epoch."""

    name: str
    records: int
    """Rows that came into it."""
    busy: float
    """Seconds that its slots worked on them, summed."""
    slots: int
    busiest: float | None = None
    """Seconds of the slot that worked longest; where unknown, slots are taken to work equally long."""
    fixed: bool = False
    """Its slots follow from something else (the splits there are to read): counted, never changed."""
    ahead: bool = False
    """Runs beside the other stages, not in line with them."""


@dataclass(frozen=True)
class EpochFacts:
    """One epoch, or a moment without one (nothing read, nothing done): an idle flow may shrink, too."""

    at: float
    """When it ended, on a clock that does not go back."""
    seconds: float
    """From its begin to its end."""
    records: int
    """Rows read from the sources."""
    offered: float
    """Records that came to the sources per second since the epoch before; see ``offered_rate``."""
    backlog: int
    """Records that are waiting."""
    cores: int
    """Tasks that all executors together can run at a time."""
    stages: tuple[StageFacts, ...]
    limit: int | None = None
    """Records that the sources let into an epoch at most."""
    key_groups: int = KEY_GROUPS


def offered_rate(taken: int, backlog_before: int, backlog: int, seconds: float) -> float:
    """Records that came per second: those that were taken, and those by which the backlog has grown.

    A source that cannot tell its backlog gives 0 for both; then no more is seen than was processed, and the slots
    reach what is needed in several steps.

    >>> offered_rate(taken=10_000, backlog_before=0, backlog=5_000, seconds=1.0)
    15000.0
    """
    return max(0.0, (taken + backlog - backlog_before) / seconds) if seconds > 0 else 0.0


@dataclass(frozen=True)
class Measured:
    """A stage over some epochs."""

    name: str
    slots: int
    ratio: float | None
    """Records into the stage per record into the flow."""
    cost: float | None
    """Busy seconds per record: the inverse of the true rate."""
    skew: float = 1.0
    """The busiest slot's work, in those of an average one."""
    fixed: bool = False
    ahead: bool = False

    @property
    def unit(self) -> float:
        """Busy seconds per record into the flow."""
        return (self.ratio or 0.0) * (self.cost or 0.0)


@dataclass(frozen=True)
class Sample:
    """The measurements of several epochs together."""

    at: float
    offered: float
    excess: float
    """Records waiting beyond those that came while the last epoch ran."""
    overhead: float
    """The fixed cost of an epoch, in seconds."""
    limit: int | None
    cores: int
    key_groups: int
    stages: tuple[Measured, ...]


def measure(epochs: Sequence[EpochFacts], began: float) -> Sample:
    """Epochs as one sample; ``began`` is when the epoch before them ended."""
    last = epochs[-1]
    ends = [began, *(epoch.at for epoch in epochs)]
    spans = [after - before if after > before else epoch.seconds for before, after, epoch in zip(ends, ends[1:], epochs, strict=False)]
    elapsed = sum(spans)
    offered = sum(epoch.offered * span for epoch, span in zip(epochs, spans, strict=True)) / elapsed if elapsed > 0 else last.offered
    records = sum(epoch.records for epoch in epochs)
    worked = [epoch for epoch in epochs if epoch.seconds > 0]
    in_line = sum(_longest(stage) for epoch in worked for stage in epoch.stages if not stage.ahead)
    overhead = max(0.0, sum(epoch.seconds for epoch in worked) - in_line) / len(worked) if worked else 0.0
    return Sample(
        at=last.at,
        offered=offered,
        excess=max(0.0, last.backlog - offered * last.seconds),
        overhead=overhead,
        limit=last.limit,
        cores=last.cores,
        key_groups=last.key_groups,
        stages=tuple(
            _measure_stage(stage, [s for e in epochs for s in e.stages if s.name == stage.name], records) for stage in last.stages
        ),
    )


def _longest(stage: StageFacts) -> float:
    return stage.busiest if stage.busiest is not None else stage.busy / max(1, stage.slots)


def _measure_stage(stage: StageFacts, seen: Sequence[StageFacts], taken: int) -> Measured:
    records, busy = sum(s.records for s in seen), sum(s.busy for s in seen)
    average = sum(s.busy / max(1, s.slots) for s in seen)
    return Measured(
        name=stage.name,
        slots=max(1, stage.slots),
        ratio=records / taken if taken > 0 else None,
        cost=busy / records if records > 0 else None,
        skew=sum(_longest(s) for s in seen) / average if average > 0 else 1.0,
        fixed=stage.fixed,
        ahead=stage.ahead,
    )


def typical(samples: Sequence[Sample]) -> Sample:
    """The median of everything: one sample that is off (a pause, a step in its middle) does not show."""
    last = samples[-1]

    def middle(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    stages = []
    for stage in last.stages:
        seen = [s for sample in samples for s in sample.stages if s.name == stage.name]
        ratio, cost = middle(s.ratio for s in seen), middle(s.cost for s in seen)
        stages.append(Measured(stage.name, stage.slots, ratio, cost, median(s.skew for s in seen), stage.fixed, stage.ahead))
    return Sample(
        at=last.at,
        offered=median(sample.offered for sample in samples),
        excess=median(sample.excess for sample in samples),
        overhead=median(sample.overhead for sample in samples),
        limit=last.limit,
        cores=last.cores,
        key_groups=last.key_groups,
        stages=tuple(stages),
    )


@dataclass(frozen=True)
class Need:
    """The slots that a load needs."""

    slots: Mapping[str, int]
    """Per stage whose slots can be chosen."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """The part of the time in line that each stage then has."""


def rate_needed(sample: Sample, target: float, catch_up: float | None) -> float:
    """Records/s to plan for: those offered, or more where the room above the target would not work the backlog off in time."""
    waiting = sample.excess / catch_up if catch_up else 0.0
    return max(sample.offered, (sample.offered + waiting) * target)


def budget(sample: Sample, line: Sequence[Measured], rate: float, target: float) -> float:
    """How much of the time the stages of a line may take whose slots can be chosen."""
    lost = sample.overhead * rate / sample.limit if sample.limit and not line[0].ahead else 0.0
    bound = sum(rate * stage.unit / stage.slots for stage in line if stage.fixed)
    return max(target * (1 - lost) - bound, target * _LEAST_BUDGET)


def lines(sample: Sample) -> list[list[Measured]]:
    """Stages that share their time; each that runs beside the others has its own."""
    in_line = [stage for stage in sample.stages if not stage.ahead]
    return ([in_line] if in_line else []) + [[stage] for stage in sample.stages if stage.ahead]


def utilisation(sample: Sample, rate: float, target: float, slots: Mapping[str, int]) -> float:
    """How much of their budget the stages of the fullest line take at some numbers of slots; 1 is exactly on target."""
    used = [
        sum(rate * stage.unit / slots[stage.name] for stage in line if not stage.fixed) / budget(sample, line, rate, target)
        for line in lines(sample)
    ]
    return max(used, default=0.0)


def require(sample: Sample, rate: float, target: float, least: Mapping[str, int], most: Mapping[str, int]) -> Need:
    """The fewest slots, from ``least`` to ``most`` per stage, with which the load stays within the target; ``most`` where none do.

    More load never gives fewer slots: in which order stages are given slots depends on their costs, and the load only says
    when to stop.
    """
    slots: dict[str, int] = {}
    shares: dict[str, float] = {}
    for line in lines(sample):
        chosen = {stage.name: stage.unit for stage in line if not stage.fixed}
        allowed = budget(sample, line, rate, target) * (1 + 1e-9)
        own = {name: least[name] for name in chosen}
        while rate * sum(unit / own[name] for name, unit in chosen.items()) > allowed:
            open_ = [name for name in chosen if own[name] < most[name]]
            if not open_:
                break
            own[max(open_, key=lambda name: chosen[name] / (own[name] * (own[name] + 1)))] += 1
        slots.update(own)
        times = {stage.name: stage.unit / own.get(stage.name, stage.slots) for stage in line}
        shares.update({name: time / sum(times.values()) if sum(times.values()) else 1.0 for name, time in times.items()})
    return Need(slots, shares)


def capacity(sample: Sample, slots: Mapping[str, int]) -> float:
    """The records/s at which some line would be at work all the time: the largest load that can be
    processed."""
    rates = []
    for line in lines(sample):
        each = sum(stage.unit / slots.get(stage.name, stage.slots) for stage in line)
        each += sample.overhead / sample.limit if sample.limit and not line[0].ahead else 0.0
        rates.append(1 / each if each > 0 else float("inf"))
    return min(rates, default=float("inf"))
