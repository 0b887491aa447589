"""What joins, processors and operators that keep whole rows store: what can go on with it, and what cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

import meander as md
from meander.errors import FlowError
from meander.plan.change.become import Become
from meander.plan.change.modify import Insert, Remove, Replace, StateRules, modify
from meander.plan.graph import Plan

LEFT: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int32(), "ts": pl.Datetime("us")}
RIGHT: dict[str, Any] = {"k": pl.Int64(), "w": pl.Int32(), "at": pl.Datetime("us")}


class Counter(md.Processor):
    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)
    last = md.value("int32")
    seen = md.map_of("string", "int64")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        yield (state.n,)


class Twice(Counter):
    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += 2 * len(rows)
        yield (state.n,)


class More(Counter):
    items = md.list_of("int64")
    other = md.value("string")
    last = md.value("int64")


class Defaulted(Counter):
    many = md.value("int64", default=7)


class Fewer(md.Processor):
    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        yield (state.n,)


class OtherDefault(Counter):
    n = md.value("int64", default=1)


class Timed(Counter):
    def on_timer(self, key: Any, timer: Any, state: Any, ctx: Any) -> Any:
        yield (state.n,)


class Forgetful(Counter):
    n = md.value("int64", default=0, ttl="1h")


class LongForgetful(Counter):
    n = md.value("int64", default=0, ttl="2h")


def flow_of(
    join: dict[str, Any] | None = None,
    latest: dict[str, Any] | None = None,
    processor: type[md.Processor] = Counter,
    top: int = 3,
    order: str = "v",
    grace: str = "5s",
    key: str = "k",
    extra: bool = False,
    cut: Any = None,
    cut_how: str = "inner",
    cut_where: str | None = None,
) -> md.Flow:
    flow = md.Flow("all")
    left = flow.source("left", rows(**LEFT)).watermark("ts", grace=grace, name="left_time")
    if extra:
        left = left.with_columns(extra="v + 1", name="extra")
    right = flow.source("right", rows(**RIGHT)).watermark("at", grace="5s", name="right_time")
    left.join(right, on="k", name="pairs", **{"within": "10s", **(join or {})}).sink("pairs_out", Nowhere())
    window = cut or md.cumulating("10s", "2s")
    left.window(window).join(right, on="k", how=cut_how, where=cut_where, name="shared").sink("shared_out", Nowhere())
    left.join_latest(right, on="k", name="newest", **(latest or {})).sink("newest_out", Nowhere())
    left.key_by(key).process(processor, name="counted").sink("counted_out", Nowhere())
    left.key_by("k").top(top, by="v", name="best").sink("best_out", Nowhere())
    left.key_by("k").latest(order=order, name="last").sink("last_out", Nowhere())
    left.key_by("k").deduplicate(ttl="1m", name="once").sink("once_out", Nowhere())
    left.key_by("k").window(md.tumbling("10s")).top(2, by="v", name="window_best").sink("window_best_out", Nowhere())
    left.key_by("k").window(md.session("10s")).aggregate(md.count().alias("n"), name="visits").sink("visits_out", Nowhere())
    return flow


def plan() -> Plan:
    return flow_of().plan()


def became(change: dict[str, Any], **rules: Any) -> dict[str, str]:
    _, effects = modify(plan(), [Become(flow_of(**change).plan())], StateRules(**rules))
    return {name: fate.words() for name, fate in effects.state.items()}


KEPT: dict[str, tuple[dict[str, Any], str, str]] = {
    "another condition of a join in windows": ({"cut_where": "v > w"}, "shared", "kept"),
    "another condition of a join": ({"join": {"where": "v > w"}}, "pairs", "kept"),
    "other names behind a join": ({"join": {"suffix": "_r"}}, "pairs", "kept"),
    "a join with the latest row becomes an outer one": ({"latest": {"how": "left"}}, "newest", "kept"),
    "grace": ({"grace": "9s"}, "pairs", "kept"),
    "a processor's code": ({"processor": Twice}, "counted", "kept"),
    "variables more and wider": ({"processor": More}, "counted", "kept, with the new items, other, wider in last"),
    "variables fewer": ({"processor": Fewer}, "counted", "kept, without last, seen.key, seen.value"),
}


@pytest.mark.parametrize("case", KEPT)
def test_state_goes_on(case: str) -> None:
    change, operator, fate = KEPT[case]
    assert became(change)[operator] == fate


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "windows of a join": ({"cut": md.sliding("10s", "2s")}, r"join 'shared' cannot go on with its state: its bounds was"),
    "a join in sessions": ({"cut": md.session("10s")}, r"join 'shared' cannot go on with its state: its bounds was"),
    "how of a join in windows": ({"cut_how": "semi"}, r"join 'shared'.*its how was inner and would be semi"),
    "bounds": ({"join": {"within": "20s"}}, r"join 'pairs' cannot go on with its state: its bounds was"),
    "how": ({"join": {"how": "left"}}, r"join 'pairs'.*its how was inner and would be left"),
    "a join becomes a semi join": ({"join": {"how": "semi"}}, r"join 'pairs'.*its how was inner and would be semi"),
    "a join by event time": ({"latest": {"as_of": True}}, r"join_latest 'newest'.*its by was arrival"),
    "other input": ({"extra": True}, r"join 'pairs'.*its input was"),
    "top n": ({"top": 4}, r"top 'best' cannot go on with its state: its stored rows may have another meaning"),
    "order": ({"order": "ts"}, r"latest 'last' cannot go on"),
    "default of a variable": ({"processor": OtherDefault}, r"held a value with the default 0 and would hold a value with the default 1"),
    "a variable with a default": ({"processor": Defaulted}, r"keys from before have no 'many'.*backfill=\{'many': ...\}"),
    "timers": ({"processor": Timed}, r"process 'counted'.*its timers was no and would be yes"),
    "forgetting": ({"processor": Forgetful}, r"process 'counted'.*its forgetting was nothing is"),
    "key": ({"key": "v"}, r"process 'counted'.*it was keyed by k and would be by v"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_state_that_cannot_go_on_is_refused(case: str) -> None:
    change, why = REFUSED[case]
    with pytest.raises(FlowError, match=why):
        became(change)
    assert "dropped and begun anew" in became(change, drop=True).values()


def test_a_time_to_live_can_change() -> None:
    _, effects = modify(flow_of(processor=Forgetful).plan(), [Replace("counted", md.process(LongForgetful))])
    assert effects.state["counted"].words() == "kept"


def test_a_new_variable_with_a_default_is_filled() -> None:
    fates = became({"processor": Defaulted}, backfill={"counted": {"many": 3}})
    assert fates["counted"] == "upgraded, with the new many"
    with pytest.raises(FlowError, match="'few' is not new"):
        became({"processor": Defaulted}, backfill={"counted": {"few": 3}})
    with pytest.raises(FlowError, match="held a value with the default 0"):
        became({"processor": OtherDefault}, backfill={"counted": {"n": 3}})


def test_a_semi_join_without_a_bound_gets_no_condition_on_rows_that_it_has_not_kept() -> None:
    before, after = (flow_of({"within": None, "how": "semi", **more}).plan() for more in ({}, {"where": "v > w"}))
    with pytest.raises(FlowError, match="kept of the right was the first row of each key and would be all rows"):
        modify(before, [Become(after)], StateRules())


def test_rows_of_a_join_are_not_rewritten() -> None:
    with pytest.raises(FlowError, match=r"upgrade of 'pairs': a join keeps rows of its input.*drop_state"):
        became({"join": {"where": "v > w"}}, upgrade={"pairs": lambda frame: frame})


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "insert a join": (lambda: Insert("more", plan().node("pairs").op, after="left_time"), "a join has several inputs"),
    "remove a join": (lambda: Remove("pairs"), "it has 2 inputs, so that 'pairs_out' would not know which to read"),
    "a processor without a key": (lambda: Insert("p", md.process(Counter), after="left_time"), "it has no key"),
    "a column that a join needs": (lambda: Insert("gone", md.select("v", "ts"), after="left_time", before="pairs"), "left side.*'k'"),
    "the time of a join": (lambda: Insert("gone", md.select("k", "v"), after="left_time", before="pairs"), "its rows have no event time"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused(case: str) -> None:
    make, why = WRONG[case]
    with pytest.raises(FlowError, match=why):
        modify(plan(), [make()], StateRules(drop=True))


def test_a_processor_takes_the_key_of_what_it_replaces_and_can_be_inserted_with_its_own() -> None:
    after, _ = modify(plan(), [Replace("counted", md.process(Twice))])
    assert after.node("counted").op.keys == ("k",)  # type: ignore[attr-defined]
    again = Insert("again", md.process(Fewer, by=["k", "v"]), after="left_time", before="counted_out")
    with pytest.raises(FlowError, match="'counted_out' does not read 'left_time'"):
        modify(plan(), [again])
    after, effects = modify(
        plan(),
        [Insert("again", md.process(Fewer, by=["k", "v"]), after="left_time", before="last"), Remove("last")],
        StateRules(drop=["last"]),
    )
    assert after.node("again").op.keys == ("k", "v")  # type: ignore[attr-defined]
    assert effects.state["again"].kind == "created"
