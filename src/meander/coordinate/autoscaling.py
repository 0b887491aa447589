"""When to change the number of slots. Pure: one epoch's facts and a memory in, a scaling and the next memory out.

How many slots a load needs is ``capacity``'s business. This module decides when to act on it, so
that a flow follows its load and not the noise in it:

1. Epochs are gathered into samples of some seconds; the first ones after a change are left out, since caches are cold.
2. **More slots at once**: when each of the last three samples is above the band around the target, the stages get, in one step,
   what the median of the three needs. (Of three samples across a step in the load at most one is mixed: so the median is the new load.)
3. **Fewer slots lazily**: when fewer would have been enough, with the band to spare, in every
   sample for ``shrink_after``. The new number is the largest that any of these samples needed.
4. After any change, also one made by hand, nothing happens during the cool-down; and there are at
   most so many changes per hour.

Slots are never more than the executors have cores (the tasks of a stage would queue), than key
groups, or than ``max``. The caller applies a scaling at an epoch boundary and goes on reporting
epochs; a scaling that is not applied is decided again after the cool-down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meander.coordinate.capacity import (
    EpochFacts,
    Need,
    Sample,
    capacity,
    measure,
    rate_needed,
    require,
    typical,
    utilisation,
)
from meander.settings import Autoscale

_IN_A_ROW = 3
_SKEWED = 1.5
_HOUR = 3600.0


@dataclass(frozen=True)
class Scaling:
    """A decision and its reason. Notes, cores and skew are computed at the end of a sample; in
    between they are empty."""

    slots: Mapping[str, int] = field(default_factory=dict)
    """The new number of slots of the stages that change; empty where nothing is to be done."""
    reasons: tuple[str, ...] = ()
    """One sentence per changed stage, or one that says why nothing changes."""
    notes: tuple[str, ...] = ()
    """Warnings for the operator: a stage that cannot keep up, a change held back, an overloaded
    slot."""
    cores: int = 0
    """Cores that the load needs, within ``max``: executors may be requested or returned to have so many. 0: not known yet."""
    skewed: tuple[str, ...] = ()
    """Stages whose slots differ so much that rebalancing by load helps and more slots may not."""


@dataclass(frozen=True)
class Asked:
    """The number of slots that would have been enough at a moment, with the band to spare."""

    at: float
    slots: Mapping[str, int]


@dataclass(frozen=True)
class Memory:
    """The past, as the next decision needs it. Starts empty; only this module reads it."""

    slots: Mapping[str, int] = field(default_factory=dict)
    warm: int = 0
    """Epochs that were left out since the last change."""
    since: float | None = None
    """When measuring began."""
    began: float | None = None
    """When the first of the pending epochs began."""
    pending: tuple[EpochFacts, ...] = ()
    """Epochs of a sample that is not complete."""
    samples: tuple[Sample, ...] = ()
    asked: tuple[Asked, ...] = ()
    changed: float | None = None
    rescales: tuple[float, ...] = ()


def restart(memory: Memory, at: float) -> Memory:
    """The memory after a change that facts do not show, such as a rebalancing at the same number of slots: measure anew."""
    return Memory(slots=memory.slots, changed=at, rescales=memory.rescales)


def decide(settings: Autoscale, memory: Memory, facts: EpochFacts) -> tuple[Scaling, Memory]:
    """The change to make, if any. Called after every epoch, and from time to time while there is
    none."""
    slots = {stage.name: stage.slots for stage in facts.stages if not stage.fixed}
    if slots != memory.slots:
        began = restart(memory, facts.at) if memory.slots else memory
        memory = replace(began, slots=slots)
    if memory.warm < settings.warmup_epochs:
        return Scaling(reasons=("warming up",)), replace(memory, warm=memory.warm + (facts.seconds > 0))
    memory = _gather(settings, memory, facts)
    if memory.pending or len(memory.samples) < _IN_A_ROW:
        return Scaling(reasons=("measuring",)), memory
    found = _Found(settings, memory)
    memory = replace(memory, asked=_remember(settings, memory, found, facts.at))
    wanted, reasons = found.corrected() or found.larger() or _smaller(settings, memory, found, facts.at) or ({}, ())
    notes = found.notes()
    outcome = Scaling(wanted, reasons, notes, found.cores(), found.skewed())
    if not wanted:
        return replace(outcome, reasons=(found.as_it_is(),)), memory
    if memory.changed is not None and facts.at - memory.changed < settings.cooldown:
        rest = settings.cooldown - (facts.at - memory.changed)
        return replace(outcome, slots={}, reasons=(f"cooling down for {rest:.0f} s more",)), memory
    recent = tuple(at for at in memory.rescales if facts.at - at < _HOUR)
    if len(recent) >= settings.rescales_per_hour:
        held = f"held back: {len(recent)} rescales within the last hour, next in {recent[0] + _HOUR - facts.at:.0f} s; {'; '.join(reasons)}"
        return replace(outcome, slots={}, reasons=(held,), notes=(*notes, held)), memory
    return outcome, replace(restart(memory, facts.at), rescales=(*recent, facts.at))


def _gather(settings: Autoscale, memory: Memory, facts: EpochFacts) -> Memory:
    """Add an epoch; a sample is complete when its epochs are long enough together."""
    began = facts.at - facts.seconds if memory.began is None else memory.began
    pending = (*memory.pending, facts)
    memory = replace(memory, pending=pending, since=began if memory.since is None else memory.since, began=began)
    if facts.at - began < settings.sample:
        return memory
    samples = (*memory.samples, measure(pending, began))[-_IN_A_ROW:]
    return replace(memory, pending=(), samples=samples, began=facts.at)


def _remember(settings: Autoscale, memory: Memory, found: _Found, at: float) -> tuple[Asked, ...]:
    """The needs during ``shrink_after`` and a little before it, where samples still mix the loads
    before and after a step."""
    kept = [asked for asked in memory.asked if _within(settings, asked, at)]
    before = memory.asked[: len(memory.asked) - len(kept)][-_IN_A_ROW:]
    return (*before, *kept, Asked(at, found.sparing().slots))


def _within(settings: Autoscale, asked: Asked, at: float) -> bool:
    return at - asked.at <= settings.shrink_after


def _smaller(settings: Autoscale, memory: Memory, found: _Found, at: float) -> tuple[dict[str, int], tuple[str, ...]] | None:
    if memory.since is None or at - memory.since < settings.shrink_after:
        return None
    ever = {name: max(asked.slots[name] for asked in memory.asked) for name in found.now}
    if sum(ever.values()) >= sum(found.now.values()):
        return None
    enough = {
        name: min(found.most[name], max(asked.slots[name] for asked in memory.asked if _within(settings, asked, at))) for name in found.now
    }  # what was asked while there were more cores is bounded by those there are
    changes = {name: number for name, number in enough.items() if number != found.now[name]}
    span = f"{settings.shrink_after / 60:g} minutes" if settings.shrink_after >= 60 else f"{settings.shrink_after:g} s"
    return changes, tuple(
        f"{name}: {_slots(number)} would have been enough for {span}, there are {found.now[name]}" for name, number in changes.items()
    )


class _Found:
    """The need that the last samples show together."""

    def __init__(self, settings: Autoscale, memory: Memory) -> None:
        self._settings = settings
        self._samples = memory.samples
        self._sample = typical(memory.samples)
        self._target = settings.target_utilisation
        self._rate = rate_needed(self._sample, self._target, settings.catch_up)
        self.now = dict(memory.slots)
        reach = min(settings.max, self._sample.key_groups)
        self._wide = dict.fromkeys(self.now, max(1, reach))
        self.most = dict.fromkeys(self.now, max(1, min(reach, self._sample.cores)))
        self._least = {name: min(settings.min, most) for name, most in self.most.items()}

    def corrected(self) -> tuple[dict[str, int], tuple[str, ...]] | None:
        """Slots outside their limits, such as after the loss of an executor; if it lasts."""
        most = max(min(self._settings.max, sample.cores, sample.key_groups) for sample in self._samples)
        outside = {name: number for name, number in self.now.items() if number > max(1, most) or number < self._least[name]}
        if not outside:
            return None
        clamped = {name: min(max(self.now[name], self._least[name]), self.most[name]) for name in self.now}
        need = self._require(clamped)
        changes = {name: number for name, number in need.slots.items() if number != self.now[name]}
        limits = f"between {self._settings.min} and {self._settings.max} are allowed and {self._sample.cores} cores are there"
        return changes, tuple(f"{name}: {_slots(self.now[name])}, but {limits}: {_slots(number)}" for name, number in changes.items())

    def larger(self) -> tuple[dict[str, int], tuple[str, ...]] | None:
        above = all(self._above_band(sample) for sample in (*self._samples, self._sample))
        if not above:
            return None
        need = self._require(self.now)
        changes = {name: number for name, number in need.slots.items() if number > self.now[name]}
        return (changes, tuple(self._sentence(name, need) for name in changes)) if changes else None

    def as_it_is(self) -> str:
        used = utilisation(self._sample, self._sample.offered, self._target, self.now) * self._target
        offered = f"{_number(self._sample.offered)} records/s offered"
        return f"nothing to change: {offered} are {used:.0%} of what the slots can do, target {self._target:.0%}"

    def sparing(self) -> Need:
        """The slots that would be enough with the band to spare, so that a shrink is not followed
        by a growth."""
        return require(self._sample, self._rate, self._target * (1 - self._settings.band), self._least, self.most)

    def cores(self) -> int:
        needed = require(self._sample, self._rate, self._target, dict.fromkeys(self.now, 1), self._wide).slots
        return max((*needed.values(), self._settings.min))

    def skewed(self) -> tuple[str, ...]:
        return tuple(
            stage.name
            for stage in self._sample.stages
            if not stage.fixed
            and stage.slots > 1
            and stage.skew > _SKEWED
            and self._rate * stage.unit / stage.slots * stage.skew > self._target
        )

    def notes(self) -> tuple[str, ...]:
        sample, notes = self._sample, []
        possible = capacity(sample, self.most)
        if sample.stages and sample.offered > possible * self._target * (1 + self._settings.band):
            slowest = max(sample.stages, key=lambda s: s.unit / self.most.get(s.name, s.slots))
            number = self.most.get(slowest.name, slowest.slots)
            why = "which follow its splits" if slowest.fixed else f"the most that max={self._settings.max} and {sample.cores} cores allow"
            verdict = "cannot keep up" if sample.offered > possible else f"runs at {sample.offered / possible:.0%}"
            notes.append(
                f"{slowest.name} {verdict}: {_number(sample.offered)} records/s offered to the flow, "
                f"at most {_number(possible)} possible with {_slots(number)}, {why}"
            )
        if sample.limit and sample.overhead * sample.offered / sample.limit > 0.5:
            notes.append(
                f"epochs of at most {_number(sample.limit)} records cost {sample.overhead:.2g} s each beside the work, more than half "
                "of the time at this rate: raise the sources' limits per epoch"
            )
        busiest = {stage.name: stage.skew for stage in sample.stages}
        notes.extend(f"{name}: the busiest slot does {busiest[name]:.1f} times the average; rebalance it by load" for name in self.skewed())
        return tuple(notes)

    def _require(self, least: Mapping[str, int]) -> Need:
        most = {name: max(self.most[name], least[name]) for name in least}
        return require(self._sample, self._rate, self._target, least, most)

    def _above_band(self, sample: Sample) -> bool:
        rate = rate_needed(sample, self._target, self._settings.catch_up)
        return utilisation(sample, rate, self._target, self.now) > 1 + self._settings.band

    def _sentence(self, name: str, need: Need) -> str:
        stage = next(stage for stage in self._sample.stages if stage.name == name)
        share = need.shares[name]
        offered = _number(self._sample.offered * (stage.ratio or 0.0))
        waiting = f" and {_number(self._sample.excess)} waiting" if self._rate > self._sample.offered else ""
        each = _number(self._target * share / stage.cost) if stage.cost else "nothing"
        turn = f"{self._target:.0%}" + (f" of its {share:.0%} of the time" if share < 0.995 else "")
        return f"{name}: {offered} records/s offered{waiting}, {each} per slot at {turn}: {_slots(need.slots[name])}"


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
