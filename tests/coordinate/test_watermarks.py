"""How an epoch moves event time on: marks never go back, and what is late in an epoch is what had closed before it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meander.coordinate.watermarks import Rule, advance, heard_from, low, together
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
    assert run(rule, [({"a": 5}, 0), ({}, 60)])[-1]["mark"] == 5, "nobody says that time goes on"


def test_where_all_partitions_are_silent_none_holds_the_others_back_whoever_was_silent_first() -> None:
    rule = Rule(0, 10_000_000)
    at_once = run(rule, [({"a": 30, "b": 1}, 0), ({}, 60)])
    one_by_one = run(rule, [({"a": 30, "b": 1}, 0), ({"a": 30}, 1), ({}, 9), ({}, 50)])
    other_way = run(rule, [({"a": 30, "b": 1}, 0), ({"b": 1}, 1), ({}, 9), ({}, 50)])
    assert [found[-1]["mark"] for found in (at_once, one_by_one, other_way)] == [30, 30, 30]


def test_an_idle_partition_that_wakes_up_behind_the_mark_does_not_take_it_back() -> None:
    assert run(Rule(0, 10_000_000), [({"a": 5, "b": 1}, 0), ({"a": 40}, 11), ({"b": 2}, 1)])[-1]["mark"] == 40


def test_who_follows_several_watermarks_goes_by_the_slowest_less_its_delay() -> None:
    times = {"x": {"mark": 50, "late": 40}, "y": {"mark": 30, "late": 20}}
    assert low(times, ["x", "y"], 0, "mark") == 30
    assert low(times, ["x", "y"], 5, "late") == 15
    assert low(times, ["x", "z"], 5, "mark") == NEVER, "one of which nothing is known holds all back"
    assert low(times, [], 0, "mark") == FOREVER


BOTH = frozenset({"x", "y"})
IDLE = {"x": Rule(0, 10_000_000), "y": Rule(0, 10_000_000)}


def follow(rules: dict[str, Rule], *epochs: tuple[dict[str, int], float], started: float = 0.0) -> list[int]:
    """The mark of who follows both watermarks after each epoch: what each has heard, and when it was decided."""
    times: dict[str, Any] = {}
    found = []
    for heard, now in epochs:
        times = advance(times, rules, {name: {"p": largest} for name, largest in heard.items()}, now, [BOTH], started)
        found.append(low(times, BOTH, 0, "mark"))
        assert low(times, BOTH, 0, "late") == (found[-2] if len(found) > 1 else NEVER)
    return found


def test_a_watermark_that_is_silent_for_its_idle_time_holds_nobody_back_who_follows_others_too() -> None:
    assert follow(IDLE, ({"x": 5, "y": 1}, 0.0), ({"x": 30}, 9.0), ({"x": 40}, 10.0)) == [1, 1, 40]
    assert follow({"x": IDLE["x"], "y": Rule(0, None)}, ({"x": 5, "y": 1}, 0.0), ({"x": 40}, 99.0)) == [1, 1], "unless it says when"


def test_a_watermark_under_which_nothing_was_ever_heard_is_silent_since_the_first_epoch() -> None:
    assert follow(IDLE, ({"x": 5}, 100.0), ({"x": 6}, 109.0), ({"x": 7}, 110.0)) == [NEVER, NEVER, 7]


def test_a_watermark_that_wakes_up_behind_the_others_takes_nobody_back() -> None:
    assert follow(IDLE, ({"x": 5, "y": 1}, 0.0), ({"x": 40}, 10.0), ({"x": 41, "y": 2}, 11.0), ({"y": 50}, 12.0)) == [1, 40, 40, 41]


def test_where_all_watermarks_are_silent_none_holds_the_others_back() -> None:
    assert follow(IDLE, ({"x": 5, "y": 1}, 0.0), ({}, 60.0)) == [1, 5]
    assert follow(IDLE, ({"x": 5, "y": 1}, 0.0), ({"y": 1}, 1.0), ({}, 10.5), ({}, 60.0)) == [1, 1, 1, 5]


def test_the_time_in_which_nobody_ran_is_no_silence() -> None:
    assert follow(IDLE, ({"x": 5, "y": 1}, 0.0), ({"x": 40}, 1_005.0), ({"x": 41}, 1_010.0), started=1_000.0) == [1, 1, 41]
    known = advance({}, IDLE, {"x": {"p": 9, "q": 3}}, 0.0)
    assert [advance(known, IDLE, {"x": {"p": 20}}, now, started=1_000.0)["x"]["mark"] for now in (1_009.0, 1_010.0)] == [3, 20]


@given(epochs, epochs)
def test_the_mark_of_who_follows_several_never_goes_back_and_is_never_behind_the_slowest(one: Any, other: Any) -> None:
    times: dict[str, Any] = {}
    now, before = 0.0, NEVER
    for (x, later), (y, _) in zip(one, other, strict=False):
        now += 4.0 * later
        times = advance(times, IDLE, {"x": x, "y": y}, now, [BOTH])
        mark = low(times, BOTH, 0, "mark")
        assert max(before, min(times["x"]["mark"], times["y"]["mark"])) <= mark <= max(times["x"]["mark"], times["y"]["mark"])
        assert times[together(BOTH)]["late"] == before
        before = mark


def test_who_comes_to_follow_several_begins_at_the_slowest() -> None:
    alone = advance({}, IDLE, {"x": {"p": 5}, "y": {"p": 9}}, 0.0)
    assert low(alone, BOTH, 0, "mark") == 5
    assert low(advance(alone, IDLE, {"x": {"p": 7}}, 1.0, [BOTH]), BOTH, 0, "late") == 5


def test_partitions_of_a_source_that_begins_anew_hold_nobody_back() -> None:
    times = advance({}, {"w": Rule(0, None)}, {"w": {"s/0": 5, "s/1": 3, "other/0": 9}}, 0.0)
    anew = advance(heard_from(times, {"other": None}), {"w": Rule(0, None)}, {"w": {"s/0": 7}}, 1.0)
    assert (times["w"]["mark"], anew["w"]["mark"]) == (3, 7)


def test_partitions_that_a_source_has_no_more_hold_nobody_back() -> None:
    times = advance({}, {"w": Rule(0, None)}, {"w": {"s/0": 5, "s/1": 4, "s/2": 3}}, 0.0)
    fewer = advance(heard_from(times, {"s": 2}), {"w": Rule(0, None)}, {"w": {"s/0": 20}}, 1.0)
    assert fewer["w"]["mark"] == 4, "the one that is left and has not spoken since still counts"
