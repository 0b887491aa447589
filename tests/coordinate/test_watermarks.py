"""How an epoch moves event time on: marks never go back, and what is late in an epoch is what had closed before it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meander.coordinate.watermarks import Rule, advance, heard_from, low
from meander.plan.windows import FOREVER, NEVER

Heard = dict[str, int]
epochs = st.lists(st.tuples(st.dictionaries(st.sampled_from("abc"), st.integers(-50, 50)), st.integers(0, 5)), max_size=12)


def run(rule: Rule, heard: list[tuple[Heard, int]]) -> list[Any]:
    """The times after each epoch; every epoch is some seconds after the one before."""
    times: dict[str, Any] = {}
    now, found = 0.0, []
    for partitions, later in heard:
        now += later
        times = advance(times, {"w": rule}, {"w": partitions}, now)
        found.append(times["w"])
    return found


@given(epochs, st.integers(0, 9), st.sampled_from([None, 3_000_000]))
def test_a_mark_never_goes_back_and_late_is_the_mark_before(heard: list[tuple[Heard, int]], grace: int, idle: int | None) -> None:
    before = NEVER
    for times in run(Rule(grace, idle), heard):
        assert times["mark"] >= before
        assert times["late"] == before
        before = times["mark"]


@given(epochs, st.integers(0, 9))
def test_the_mark_is_the_slowest_partition_less_the_grace(heard: list[tuple[Heard, int]], grace: int) -> None:
    largest: Heard = {}
    expected = NEVER
    for (partitions, _), times in zip(heard, run(Rule(grace, None), heard), strict=True):
        for partition, moment in partitions.items():
            largest[partition] = max(moment, largest.get(partition, moment))
        if largest:  # a partition that comes later does not take the mark back
            expected = max(expected, min(largest.values()) - grace)
        assert times["mark"] == expected


def test_a_partition_that_is_silent_for_the_idle_time_holds_nobody_back() -> None:
    rule = Rule(0, 10_000_000)
    one, two, three = run(rule, [({"a": 5, "b": 1}, 0), ({"a": 30}, 9), ({"a": 40}, 1)])
    assert (one["mark"], two["mark"], three["mark"]) == (1, 1, 40)
    assert run(rule, [({"a": 5}, 0), ({}, 60)])[-1]["mark"] == 5, "where all are silent, time stands still"


def test_an_idle_partition_that_wakes_up_behind_the_mark_does_not_take_it_back() -> None:
    assert run(Rule(0, 10_000_000), [({"a": 5, "b": 1}, 0), ({"a": 40}, 11), ({"b": 2}, 1)])[-1]["mark"] == 40


def test_who_follows_several_watermarks_goes_by_the_slowest_less_its_delay() -> None:
    times = {"x": {"mark": 50, "late": 40}, "y": {"mark": 30, "late": 20}}
    assert low(times, ["x", "y"], 0, "mark") == 30
    assert low(times, ["x", "y"], 5, "late") == 15
    assert low(times, ["x", "z"], 5, "mark") == NEVER, "one of which nothing is known holds all back"
    assert low(times, [], 0, "mark") == FOREVER


def test_partitions_of_a_source_that_begins_anew_hold_nobody_back() -> None:
    times = advance({}, {"w": Rule(0, None)}, {"w": {"s/0": 5, "s/1": 3, "other/0": 9}}, 0.0)
    anew = advance(heard_from(times, {"other": None}), {"w": Rule(0, None)}, {"w": {"s/0": 7}}, 1.0)
    assert (times["w"]["mark"], anew["w"]["mark"]) == (3, 7)


def test_partitions_that_a_source_has_no_more_hold_nobody_back() -> None:
    times = advance({}, {"w": Rule(0, None)}, {"w": {"s/0": 5, "s/1": 4, "s/2": 3}}, 0.0)
    fewer = advance(heard_from(times, {"s": 2}), {"w": Rule(0, None)}, {"w": {"s/0": 20}}, 1.0)
    assert fewer["w"]["mark"] == 4, "the one that is left and has not spoken since still counts"
