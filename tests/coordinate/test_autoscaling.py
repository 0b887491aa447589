"""The autoscaler on simulated time: it follows the load in one step, and leaves noise alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinate.simulated import SimulatedStage, System

import meander as md
from meander.coordinate.autoscaling import Memory, Scaling, decide, restart
from meander.coordinate.capacity import EpochFacts, Measured, Sample, StageFacts, capacity, measure, require
from meander.errors import ConfigError
from meander.settings import Autoscale

MINUTES = 60.0
HOURS = 3600.0


def one_stage(slots: int = 1, rate: float = 30_000) -> list[SimulatedStage]:
    return [SimulatedStage("counts", rate, slots)]


def two_stages(first: int = 1, second: int = 1) -> list[SimulatedStage]:
    return [SimulatedStage("sessions", 40_000, first), SimulatedStage("totals", 25_000, second, ratio=0.5)]


def step(before: float, after: float, at: float) -> Callable[[float], float]:
    return lambda now: before if now < at else after


# -- a load that changes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("trigger", [0.0, 1.0, 7.0])
def test_a_step_to_three_times_the_load_is_one_decision(seed: int, trigger: float) -> None:
    system = System(md.autoscale(), one_stage(), step(20_000, 60_000, 125.0), seed=seed, noise=0.1, trigger=trigger)
    system.run(2 * MINUTES)
    assert system.changes == []
    system.run(11 * MINUTES)
    assert len(system.changes) == 1
    at, scaling = system.changes[0]
    assert at < 125 + 5 * max(5.0, trigger) + 30  # an epoch that has begun is finished first
    assert scaling.slots["counts"] in (3, 4)
    assert system.keeps_up()
    assert system.backlog < 60_000 * (trigger + 2)  # and the backlog is gone


@pytest.mark.parametrize("seed", range(5))
def test_all_stages_are_scaled_in_the_same_step(seed: int) -> None:
    system = System(md.autoscale(), two_stages(), step(12_000, 36_000, 120.0), seed=seed, noise=0.1)
    system.run(12 * MINUTES)
    assert len(system.changes) == 1
    assert set(system.changes[0][1].slots) == {"sessions", "totals"}
    assert system.load() <= 0.8  # together: they take turns


def test_a_source_that_cannot_tell_its_backlog_gets_there_in_several_steps() -> None:
    settings = md.autoscale(cooldown="10s")
    facts_at, slots, memory, steps = 0.0, 1, Memory(), 0
    for _ in range(400):
        facts_at += 1.0
        possible = min(60_000, 28_000 * slots)
        stage = StageFacts("counts", possible, possible / 30_000, slots)
        scaling, memory = decide(settings, memory, EpochFacts(facts_at, 1.0, possible, possible, 0, 64, (stage,)))
        if scaling.slots:
            slots, steps = scaling.slots["counts"], steps + 1
    assert (slots, steps) == (3, 2)


@pytest.mark.many
@pytest.mark.parametrize("seed", range(4))
def test_a_step_down_shrinks_late_and_once(seed: int) -> None:
    system = System(md.autoscale(), one_stage(slots=4), step(70_000, 15_000, 300.0), seed=seed, noise=0.1)
    system.run(14 * MINUTES)
    assert system.changes == []  # nine minutes of little are not enough
    system.run(20 * MINUTES)
    assert len(system.changes) == 1
    assert system.changes[0][1].slots == {"counts": 1}
    assert system.keeps_up()


def test_a_peak_within_ten_minutes_keeps_the_slots() -> None:
    system = System(md.autoscale(), one_stage(slots=4), lambda now: 75_000 if now % 480 < 60 else 15_000, noise=0.05, trigger=1.0)
    system.run(1 * HOURS)
    assert system.changes == []


@pytest.mark.many
@pytest.mark.parametrize("seed", range(2))
def test_a_day_like_a_sine_takes_a_handful_of_rescales(seed: int) -> None:
    def day(now: float) -> float:
        return 50_000 - 30_000 * math.cos(2 * math.pi * now / (24 * HOURS))

    system = System(md.autoscale(), one_stage(slots=1), day, seed=seed, noise=0.1, trigger=10.0)
    system.run(24 * HOURS)
    assert 2 <= len(system.changes) <= 6
    assert system.largest_backlog < 80_000 * 2 * 10  # never more than two epochs behind


@pytest.mark.many
@pytest.mark.parametrize("offered", [18_000, 21_000, 36_000, 42_000])
@pytest.mark.parametrize("trigger", [0.0, 2.0])
def test_noise_of_fifteen_percent_changes_nothing(offered: float, trigger: float) -> None:
    slots = math.ceil(offered / 21_000)
    for seed in range(2):
        system = System(md.autoscale(), one_stage(slots), lambda now: offered, seed=seed, noise=0.15, trigger=trigger)
        system.run(25 * MINUTES)
        assert system.changes == []


def test_waves_of_fifteen_percent_change_nothing() -> None:
    system = System(md.autoscale(), one_stage(2), lambda now: 42_000 * (1.14 if now % 120 < 60 else 0.86), noise=0.01, trigger=1.0)
    system.run(2 * HOURS)
    assert system.changes == []


def test_a_large_backlog_is_worked_off_in_time_and_then_given_back() -> None:
    system = System(md.autoscale(catch_up="10min", max=16), one_stage(1), lambda now: 15_000, limit=200_000, backlog=36_000_000)
    system.run(5 * MINUTES)
    (_, scaling), *others = system.changes
    assert not others
    assert "waiting" in scaling.reasons[0]
    system.run(10 * MINUTES)
    assert system.backlog < 200_000
    system.run(30 * MINUTES)
    assert system.slots()["counts"] <= 2


def test_a_flow_without_input_shrinks_to_the_least() -> None:
    system = System(md.autoscale(min=2), one_stage(5), lambda now: 0.0, trigger=1.0)
    system.run(11 * MINUTES)
    assert system.slots() == {"counts": 2}


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_stage_that_cannot_keep_up_at_max_says_so() -> None:
    system = System(md.autoscale(max=4), one_stage(1), lambda now: 200_000, limit=1_000_000)
    system.run(5 * MINUTES)
    assert system.slots() == {"counts": 4}
    assert len(system.changes) == 1
    assert "counts cannot keep up: 200,000 records/s offered to the flow, at most 11" in system.notes[-1][1]
    assert "with 4 slots, the most that max=4 and 64 cores allow" in system.notes[-1][1]


def test_slots_are_no_more_than_cores_and_the_cores_that_were_needed_are_said() -> None:
    system = System(md.autoscale(), one_stage(1), lambda now: 100_000, cores=2, limit=1_000_000)
    system.run(2 * MINUTES)
    assert system.slots() == {"counts": 2}
    assert system.changes[0][1].cores == 5


def test_after_the_loss_of_an_executor_slots_follow_the_cores() -> None:
    system = System(md.autoscale(), one_stage(4), lambda now: 75_000, trigger=1.0)
    system.run(2 * MINUTES)
    system.cores = 2
    system.run(1 * MINUTES)
    assert system.slots() == {"counts": 2}
    assert "2 cores are there" in system.changes[0][1].reasons[0]


def test_a_change_of_somebody_else_starts_the_cooldown_too() -> None:
    system = System(md.autoscale(cooldown="2min"), one_stage(4), lambda now: 60_000, trigger=1.0)
    system.run(2 * MINUTES)
    system.stages[0].slots = 1
    changed = system.clock.monotonic()
    system.run(5 * MINUTES)
    assert [scaling.slots for _, scaling in system.changes] == [{"counts": 3}]
    assert system.changes[0][0] - changed >= 2 * MINUTES


def test_an_order_that_is_not_obeyed_is_repeated_after_the_cooldown_until_the_guard() -> None:
    settings = md.autoscale(rescales_per_hour=2)
    system = System(settings, one_stage(1), lambda now: 60_000, limit=1_000_000, obeys=False)
    system.run(1 * HOURS)
    assert len(system.changes) == 2
    assert system.changes[1][0] - system.changes[0][0] >= settings.cooldown
    assert any(note.startswith("held back: 2 rescales within the last hour") and "3 slots" in note for _, note in system.notes)


def test_epochs_after_a_change_are_not_measured() -> None:
    settings = md.autoscale(warmup_epochs=3, sample="1s", cooldown=0)
    memory = restart(Memory(slots={"counts": 1}), at=0.0)
    cold = EpochFacts(0.0, 1.0, 1000, 1000.0, 0, 8, (StageFacts("counts", 1000, 0.99, 1),))
    for second in range(3):
        _, memory = decide(settings, memory, replace(cold, at=float(second)))
        assert memory.samples == ()
    warm = replace(cold, stages=(StageFacts("counts", 1000, 0.1, 1),))
    for second in range(3, 30):
        scaling, memory = decide(settings, memory, replace(warm, at=float(second)))
        assert not scaling.slots


def test_a_busiest_slot_is_reported_as_something_to_rebalance() -> None:
    settings, memory, scaling = md.autoscale(sample="1s"), Memory(), Scaling()
    for second in range(1, 30):
        stage = StageFacts("counts", 20_000, 1.2, 2, busiest=0.95)
        scaling, memory = decide(settings, memory, EpochFacts(float(second), 1.0, 20_000, 20_000.0, 0, 8, (stage,)))
    assert scaling.skewed == ("counts",)
    assert scaling.notes == ("counts: the busiest slot does 1.6 times the average; rebalance it by load",)


# -- how many: one sample ---------------------------------------------------------------------------------------------


def sample(offered: float, *stages: Measured, overhead: float = 0.05, limit: int | None = None) -> Sample:
    return Sample(0.0, offered, 0.0, overhead, limit, 64, 128, stages)


def test_a_reason_is_a_sentence_with_its_numbers() -> None:
    settings, memory, scaling = md.autoscale(), Memory(), Scaling()
    for second in range(1, 30):
        stage = StageFacts("counts", 29_000, 29_000 / 30_000, 1)
        scaling, memory = decide(settings, memory, EpochFacts(float(second), 1.0, 29_000, 45_000.0, 16_000 * second, 8, (stage,)))
        if scaling.slots:
            break
    assert scaling.slots == {"counts": 3}
    assert scaling.reasons == ("counts: 45,000 records/s offered, 21,000 per slot at 70%: 3 slots",)


def test_doing_nothing_has_a_reason_too() -> None:
    settings, memory, scaling = md.autoscale(sample="1s"), Memory(), Scaling()
    for second in range(1, 30):
        stage = StageFacts("counts", 20_000, 20_000 / 30_000, 1)
        scaling, memory = decide(settings, memory, EpochFacts(float(second), 1.0, 20_000, 20_000.0, 0, 8, (stage,)))
    assert scaling.slots == {}
    assert scaling.reasons == ("nothing to change: 20,000 records/s offered are 67% of what the slots can do, target 70%",)


def test_fixed_cost_is_what_stages_leave_of_an_epoch() -> None:
    stages = (StageFacts("a", 1000, 0.4, 2, busiest=0.25), StageFacts("b", 500, 0.6, 4), StageFacts("next", 1000, 0.8, 2, ahead=True))
    found = measure([EpochFacts(10.0, 0.5, 1000, 1000.0, 0, 8, stages)], began=9.5)
    assert found.overhead == pytest.approx(0.5 - 0.25 - 0.15)
    assert [stage.ratio for stage in found.stages] == [1.0, 0.5, 1.0]
    assert found.stages[1].unit == pytest.approx(0.0006)


def test_fixed_cost_counts_only_where_epochs_cannot_grow() -> None:
    stage = Measured("counts", 1, 1.0, 1 / 30_000)
    bounds = ({"counts": 1}, {"counts": 64})
    assert require(sample(42_000, stage, overhead=0.2), 42_000, 0.7, *bounds).slots == {"counts": 2}
    # 42,000 per second in epochs of 20,000: 2.1 epochs of 0.2 s are 42% of the time.
    assert require(sample(42_000, stage, overhead=0.2, limit=20_000), 42_000, 0.7, *bounds).slots == {"counts": 4}


def test_stages_in_line_share_the_time_and_one_beside_them_does_not() -> None:
    first, second = Measured("first", 1, 1.0, 1 / 10_000), Measured("second", 1, 1.0, 1 / 10_000)
    bounds = ({"first": 1, "second": 1}, {"first": 64, "second": 64})
    in_line = require(sample(7000, first, second), 7000, 0.7, *bounds)
    assert in_line.slots == {"first": 2, "second": 2}
    beside = require(sample(7000, replace(first, ahead=True), second), 7000, 0.7, *bounds)
    assert beside.slots == {"first": 1, "second": 1}


def test_a_stage_whose_slots_follow_its_splits_takes_time_and_is_left_alone() -> None:
    reading, counts = Measured("reading", 2, 1.0, 0.4 / 10_000, fixed=True), Measured("counts", 1, 1.0, 1 / 10_000)
    need = require(sample(10_000, reading, counts), 10_000, 0.7, {"counts": 1}, {"counts": 64})
    assert need.slots == {"counts": 2}
    assert sum(need.shares.values()) == pytest.approx(1)


measured = st.builds(
    Measured,
    name=st.just(""),
    slots=st.integers(1, 16),
    ratio=st.one_of(st.none(), st.floats(0, 10)),
    cost=st.one_of(st.none(), st.floats(1e-7, 1e-2)),
    skew=st.floats(1, 5),
    fixed=st.booleans(),
    ahead=st.booleans(),
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    stages = tuple(replace(stage, name=f"s{place}") for place, stage in enumerate(draw(st.lists(measured, min_size=1, max_size=4))))
    limit = draw(st.one_of(st.none(), st.integers(100, 1_000_000)))
    return sample(draw(st.floats(0, 1e6)), *stages, overhead=draw(st.floats(0, 2)), limit=limit)


@given(samples(), st.floats(0, 1e6), st.floats(1, 10), st.integers(1, 4), st.integers(0, 30))
def test_more_load_never_asks_for_fewer_slots(found: Sample, rate: float, more: float, least: int, room: int) -> None:
    chosen = [stage.name for stage in found.stages if not stage.fixed]
    lower, upper = dict.fromkeys(chosen, least), dict.fromkeys(chosen, least + room)
    few = require(found, rate, 0.7, lower, upper).slots
    many = require(found, rate * more, 0.7, lower, upper).slots
    assert all(least <= few[name] <= many[name] <= least + room for name in chosen)


@given(st.floats(1, 1e6), st.floats(1e-7, 1e-2), st.floats(0.1, 0.9))
def test_one_stage_gets_what_the_formula_of_ds2_says(rate: float, cost: float, target: float) -> None:
    wanted = max(1, math.ceil(rate * cost / target * (1 - 1e-8)))
    if wanted > 500:
        return
    found = sample(rate, Measured("counts", 1, 1.0, cost))
    assert require(found, rate, target, {"counts": 1}, {"counts": 1000}).slots["counts"] in (wanted, max(1, wanted - 1))
    given_slots = require(found, rate, target, {"counts": 1}, {"counts": 1000}).slots
    assert capacity(found, given_slots) * target >= rate * (1 - 1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e3), st.integers(0, 10**7), st.integers(1, 20)), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(1, 12),
)
def test_whatever_is_measured_decisions_stay_within_their_limits(
    epochs: list[tuple[float, float, int, int]], least: int, room: int, slots: int
) -> None:
    settings = md.autoscale(min=least, max=least + room, cooldown=0, warmup_epochs=0, shrink_after="20s")
    memory, at = Memory(), 0.0
    for offered, busy, records, cores in epochs:
        at += 3.0
        facts = EpochFacts(at, 3.0, records, offered, records, cores, (StageFacts("counts", records, busy, slots),), limit=10**6)
        scaling, memory = decide(settings, memory, facts)
        assert scaling.reasons
        for number in scaling.slots.values():
            assert number != slots
            assert min(least, cores) <= number <= min(least + room, cores)
            slots = number
    assert len(memory.rescales) <= settings.rescales_per_hour


@pytest.mark.parametrize("lost_at", range(5, 12))
def test_fewer_slots_are_no_more_than_the_cores_that_are_left(lost_at: int) -> None:
    """What was enough was asked while there were more cores."""
    settings = md.autoscale(min=1, max=3, cooldown=0, warmup_epochs=0, shrink_after="20s")
    memory, slots = Memory(), 3
    for number in range(1, 13):
        cores = 3 if number < lost_at else 1
        facts = EpochFacts(number * 3.0, 3.0, 3000, 1000.0, 0, cores, (StageFacts("counts", 3000, 3.0, slots),))
        scaling, memory = decide(settings, memory, facts)
        for chosen in scaling.slots.values():
            assert chosen <= cores
            slots = chosen
    assert slots < 3


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_what_was_asked_for() -> None:
    assert md.autoscale() == Autoscale()
    assert md.autoscale(0.5, 2, 4, cooldown="90s", catch_up=None) == Autoscale(0.5, 2, 4, cooldown=90.0, catch_up=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_utilisation": 0}, "between 0 and 1"),
        ({"target_utilisation": 70}, "between 0 and 1"),
        ({"target_utilisation": 0.9, "band": 0.2}, "too late"),
        ({"min": 0}, "at least 1"),
        ({"min": 4, "max": 2}, "max=2 is below min=4"),
        ({"max": 2.5}, "whole number"),
        ({"band": -0.1}, "band"),
        ({"cooldown": "soon"}, "duration 'soon'"),
        ({"cooldown": None}, "duration"),
        ({"shrink_after": -1}, "duration"),
        ({"sample": 0}, "duration"),
        ({"warmup_epochs": -1}, "at least 0"),
        ({"rescales_per_hour": 0}, "at least 1"),
    ],
)
def test_nonsense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        md.autoscale(**options)  # type: ignore[arg-type]
