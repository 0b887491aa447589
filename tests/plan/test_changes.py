"""Which streams only grow and which replace rows is derived from the plan; who cannot take changes refuses them, whenever it is placed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

import meander as md
from meander.errors import FlowError
from meander.plan.change.modify import Become, Insert, Remove, Replace, StateRules, modify
from meander.plan.changes import Changelog, find_retracting


def keep(frame: Any) -> Any:
    return frame


class Visits(md.Processor):
    output = {"n": "int64"}  # noqa: RUF012
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        yield (state.n,)


class Both(Visits):
    on_other_events = Visits.on_events


TEN = md.tumbling("10s")
GROWS: dict[str, Callable[[md.Stream], md.Stream]] = {
    "source": lambda s: s,
    "filter": lambda s: s.filter("amount > 1"),
    "union": lambda s: s.union(s.filter("amount > 1")),
    "closed windows": lambda s: s.key_by("customer").window(TEN).aggregate(md.count().alias("amount"), name="op"),
    "closed sessions": lambda s: s.key_by("customer").window(md.session("5s")).aggregate(md.count().alias("amount"), name="op"),
    "the best of windows": lambda s: s.key_by("customer").window(TEN).top(2, by="amount", name="op"),
    "deduplicate": lambda s: s.deduplicate("customer", name="op"),
    "join": lambda s: s.join(s.select("customer", "ts AS at", "ts"), on="customer", within="1s", name="op"),
    "semi join": lambda s: s.join(s.select("customer", "ts"), on="customer", within="1s", how="semi", name="op"),
    "join in windows that overlap": lambda s: s.window(md.sliding("4s", "2s")).join(s.select("customer", "ts"), on="customer", name="op"),
    "join in sessions": lambda s: s.window(md.session("4s")).join(s.select("customer", "ts"), on="customer", name="op"),
    "anti join": lambda s: s.join(s.select("customer", "ts"), on="customer", within="1s", how="anti", name="op"),
    "join with the latest": lambda s: s.join_latest(s.select("customer", "ts AS at"), on="customer", name="op"),
    "process": lambda s: s.key_by("customer").process(Visits, name="op").select("customer", "n AS amount"),
    "connect": lambda s: (
        s.key_by("customer").connect(s.filter("amount > 1").key_by("customer")).process(Both, name="op").select("customer", "n AS amount")
    ),
}
CHANGES: dict[str, Callable[[md.Stream], md.Stream]] = {
    "aggregate": lambda s: s.key_by("customer").aggregate(md.sum("amount").alias("amount"), md.max("ts").alias("ts"), name="op"),
    "latest": lambda s: s.key_by("customer").latest(order="ts", name="op"),
    "top": lambda s: s.key_by("customer").top(2, by="amount", name="op"),
    "windows with updates": lambda s: s.key_by("customer").window(TEN).aggregate(md.count().alias("amount"), emit="update", name="op"),
    "windows with lateness": lambda s: s.key_by("customer").window(TEN).aggregate(md.count().alias("amount"), lateness="5s", name="op"),
    "sessions with updates": lambda s: (
        s.key_by("customer").window(md.session("5s")).aggregate(md.count().alias("amount"), emit="update", name="op")
    ),
}
BETWEEN: dict[str, Callable[[md.Stream], md.Stream]] = {
    "nothing": lambda s: s,
    "filter": lambda s: s.filter("amount > 1"),
    "with_columns": lambda s: s.with_columns("amount * 2 AS twice"),
    "select": lambda s: s.select("customer", "amount"),
    "map_batches": lambda s: s.map_batches(keep),
    "union": lambda s: s.union(s.filter("amount > 1")),
}
TAKES_NONE: dict[str, Callable[[md.Stream, md.Stream], md.Stream]] = {
    "windows by the clock": lambda s, _: s.window(md.tumbling("1s", time="processing")).aggregate(md.count(), name="behind"),
    "the best of windows": lambda s, _: s.window(md.tumbling("1s", time="processing")).top(1, by="amount", name="behind"),
    "deduplicate": lambda s, _: s.deduplicate("customer", name="behind"),
    "latest": lambda s, _: s.key_by("customer").latest(name="behind"),
    "process": lambda s, _: s.key_by("customer").process(Visits, name="behind"),
    "connect": lambda s, other: s.key_by("customer").connect(other.key_by("customer")).process(Both, name="behind"),
    "connect, on the right": lambda s, other: other.key_by("customer").connect(s.key_by("customer")).process(Both, name="behind"),
    "join with the latest": lambda s, other: s.join_latest(other, on="customer", name="behind"),
}


def begin() -> tuple[md.Flow, md.Stream]:
    flow = md.Flow("f")
    return flow, flow.source("in", rows()).watermark("ts", name="time")


@pytest.mark.parametrize("name", GROWS)
def test_a_stream_whose_rows_are_final_is_append_only(name: str) -> None:
    flow, stream = begin()
    GROWS[name](stream).sink("out", Nowhere())
    assert not flow.plan().changes
    assert "rows:" not in flow.explain()


@pytest.mark.parametrize("name", GROWS)
def test_what_is_append_only_can_be_read_by_operators_with_state(name: str) -> None:
    flow, stream = begin()
    GROWS[name](stream).key_by("customer").aggregate(md.count(), name="behind").sink("out", Nowhere())
    assert set(flow.plan().changes) == {"behind", "out"}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("name", CHANGES)
def test_what_replaces_rows_is_a_stream_of_changes_up_to_its_sinks(name: str, between: str) -> None:
    flow, stream = begin()
    out = BETWEEN[between](CHANGES[name](stream))
    out.sink("out", Nowhere())
    found = flow.plan().changes
    assert found["op"].origin == found[out.name].origin == found["out"].origin == "op"
    assert "rows: the log of changes" in flow.explain()


@pytest.mark.parametrize("behind", TAKES_NONE)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_refused_where_the_flow_is_written(name: str, behind: str) -> None:
    _, stream = begin()
    with pytest.raises(FlowError, match=r"'behind': its input 'op' is a stream of changes: 'op' emits .*epochs; .*sink"):
        TAKES_NONE[behind](CHANGES[name](stream), stream.select("customer", "amount AS other"))


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("name", CHANGES)
def test_what_stands_between_does_not_hide_that_rows_are_changes(name: str, between: str) -> None:
    _, stream = begin()
    with pytest.raises(FlowError, match="is a stream of changes: 'op' emits"):
        BETWEEN[between](CHANGES[name](stream)).deduplicate("customer")


def test_the_best_rows_of_changes_are_told_apart_by_all_of_their_columns() -> None:
    _, stream = begin()
    totals = stream.key_by("customer").aggregate(md.count().alias("n"), md.collect("amount").alias("all"), name="totals")
    with pytest.raises(FlowError, match=r"'all' is List\(.*leave it out with select"):
        totals.key_by("n").top(2, by="customer")
    with pytest.raises(FlowError, match="no order of arrival"):
        totals.select("customer", "n").key_by("n").top(2, by="customer", ties="last")
    assert totals.select("customer", "n").key_by("n").top(2, by="customer").name


@pytest.mark.parametrize("name", CHANGES)
def test_an_aggregate_takes_changes_of_all_that_give_them_out(name: str) -> None:
    flow, stream = begin()
    changes = CHANGES[name](stream)
    changes.key_by("customer").aggregate(md.count(), name="behind").sink("out", Nowhere())
    changes.changes(name="log").sink("log_out", Nowhere())
    plan = flow.plan()
    assert plan.changes["behind"].vanishes
    assert find_retracting(plan.nodes, plan.changes) == {"op"}


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_join_takes_changes_of_whoever_says_what_is_gone(name: str, flipped: bool) -> None:
    flow, stream = begin()
    changes, other = CHANGES[name](stream).select("customer", "amount", name="some"), stream.select("customer", "amount AS other")
    one, two = (other, changes) if flipped else (changes, other)
    one.join(two, on="customer", how="full", name="behind").sink("out", Nowhere())
    plan = flow.plan()
    assert plan.changes["behind"].vanishes
    assert find_retracting(plan.nodes, plan.changes) == {"op", "some"}
    assert "join behind <-" in flow.explain()
    assert "full on customer, as both sides are now" in flow.explain()


def test_a_join_of_changes_has_no_bound_and_no_time() -> None:
    _, stream = begin()
    totals = stream.key_by("customer").aggregate(md.max("ts").alias("ts"), name="totals")
    timed, other = totals.watermark("ts"), stream.select("customer", "ts AS ts")
    for one, two in ((timed, other), (other, timed)):
        with pytest.raises(
            FlowError, match=r"within='1s'; one of its inputs is a stream of changes: a row of it can be removed at any time"
        ):
            one.join(two, on="customer", within="1s")
        with pytest.raises(FlowError, match=r"windows of .*10s.*; one of its inputs is a stream of changes"):
            one.window(TEN).join(two, on="customer")
        with pytest.raises(FlowError, match=r"time='at'; one of its inputs is a stream of changes"):
            one.join(two, on="customer", time="at")
        with pytest.raises(FlowError, match=r"how='outer'; there are inner, left, right, full, semi, anti"):
            one.join(two, on="customer", how="outer")
    with pytest.raises(FlowError, match=r"'all' is List\(.*leave it out with select"):
        totals.join(stream.key_by("customer").aggregate(md.collect("amount").alias("all")), on="customer")
    with pytest.raises(FlowError, match="where: "):
        totals.join(other, on="customer", where="nothing > 1")


def test_rows_of_a_join_of_changes_are_told_apart_by_the_keys_of_both() -> None:
    flow, stream = begin()
    first = stream.key_by("customer").aggregate(md.count().alias("n"), name="first")
    second = stream.key_by("amount").aggregate(md.count().alias("m"), name="second").with_columns("'x' AS customer")
    made = {how: first.join(second, on="customer", how=how, name=how).name for how in ("inner", "left", "full", "semi", "anti")}
    made["rows"] = first.join(stream.select("customer", "amount"), on="customer", name="rows").name
    for name in made:
        md.Stream(flow, name).sink(f"{name}_out", Nowhere())
    found = flow.plan().changes
    assert {name: found[name].key for name in made} == {
        "inner": ("customer", "amount"), "left": ("customer", "amount"), "full": None, "semi": ("customer",), "anti": ("customer",),
        "rows": None,
    }  # fmt: skip


def joined(above: int = 1, how: str = "left", where: str | None = None, kind: str = "totals") -> md.Flow:
    flow, stream = begin()
    if kind == "rows":
        first = stream.select("customer", pl.col("amount").cast(pl.Int64).alias("n"), name="totals")
    else:
        first = stream.key_by("customer").aggregate(md.count().alias("n"), name="totals")
    second = stream.key_by("amount").aggregate(md.count().alias("m"), name="counts").filter(f"m > {above}", name="many")
    behind = first.join(second, left_on="n", right_on="m", how=how, where=where, name="behind")
    behind.key_by("n").aggregate(md.count().alias("c"), name="last").sink("out", Nowhere())
    return flow


EVERY = ("totals", "counts", "behind", "last")


@pytest.mark.parametrize("other", [{"above": 2}, {"how": "inner"}, {"where": "amount > 3"}, {"kind": "rows"}])
def test_a_join_of_changes_begins_anew_with_all_that_it_is_told(other: dict[str, Any]) -> None:
    before, after = joined().plan(), Become(joined(**other).plan())
    for drop in ((), ("behind",), ("behind", "last"), ("counts", "behind")):
        with pytest.raises(FlowError, match=r"must have been given all removed rows, as they are now|drop_state"):
            modify(before, [after], StateRules(drop=drop))
    _, effects = modify(before, [after], StateRules(drop=EVERY))
    assert {effects.state[name].kind for name in EVERY[1:]} == {"dropped and begun anew"}


def test_a_join_cannot_go_on_where_an_input_becomes_changes() -> None:
    def flow(change: bool) -> md.Flow:
        flow, stream = begin()
        first = stream.key_by("customer").latest(name="op") if change else stream.deduplicate("customer", name="op")
        first.join(stream.select("customer", "amount AS other"), on="customer", name="behind").sink("out", Nowhere())
        return flow

    with pytest.raises(FlowError, match="it was a join and is a join of changes"):
        modify(flow(False).plan(), [Become(flow(True).plan())], StateRules(drop=("op",)))
    modify(flow(False).plan(), [Become(flow(True).plan())], StateRules(drop=("op", "behind")))


INEXACT = {
    "sum": (md.sum("amount"), "floats cannot be subtracted"),
    "mean": (md.mean("amount"), "floats cannot be subtracted"),
    "var": (md.var("n"), "its state is floats"),
    "std": (md.std("n"), "its state is floats"),
    "first": (md.first("n"), "no order of arrival"),
    "last": (md.last("n"), "no order of arrival"),
    "collect": (md.collect("n"), "no order of arrival"),
    "approximate": (md.count_distinct("n", approximate=True), "cannot forget"),
}


@pytest.mark.parametrize("name", INEXACT)
def test_an_aggregate_that_cannot_be_exact_over_changes_is_refused(name: str) -> None:
    _, stream = begin()
    totals = stream.key_by("customer").aggregate(md.sum("amount").alias("amount"), md.count().alias("n"), name="totals")
    agg, why = INEXACT[name]
    with pytest.raises(FlowError, match=rf"'totals' emits .*{why}"):
        totals.key_by("n").aggregate(agg)


def test_a_function_in_front_of_an_aggregate_of_changes_must_be_repeatable() -> None:
    _, stream = begin()
    totals = stream.key_by("customer").aggregate(md.count().alias("n"), name="totals")
    with pytest.raises(
        FlowError, match="'clean' is a function that may give another result for the same row next time; say deterministic=True"
    ):
        totals.map_batches(keep, name="clean").key_by("n").aggregate(md.count())
    with pytest.raises(FlowError, match="must be row_local"):
        totals.map_batches(keep, name="whole", row_local=False, deterministic=True).key_by("n").aggregate(md.count())
    totals.map_batches(keep, name="sure", deterministic=True).key_by("n").aggregate(md.count())


def test_a_table_that_is_no_part_of_the_flow_cannot_stand_in_front_of_state(tmp_path: Path) -> None:
    """The next start may find other rows in it: what is gone would be joined with others than when it came."""
    table = pl.DataFrame({"customer": ["a", "b"], "city": ["Rome", "Oslo"]})
    table.write_csv(tmp_path / "cities.csv")

    def behind(given: Any) -> md.Stream:
        _, stream = begin()
        totals = stream.key_by("customer").aggregate(md.count().alias("n"), name="totals")
        return totals.join_static(given, on="customer", name="cities")

    for given in (tmp_path / "cities.csv", lambda: table):
        for reader in (
            lambda s: s.key_by("city").aggregate(md.sum("n").alias("n")),
            lambda s: s.changes(),
            lambda s: s.sink("now", md.memory(table=True)),
        ):
            with pytest.raises(FlowError, match=r"the table of 'cities' comes from a file or a function .* give it a DataFrame"):
                reader(behind(given))
        behind(given).sink("log", Nowhere())
    behind(table).key_by("city").aggregate(md.sum("n").alias("n")).sink("out", Nowhere())


def test_a_watermark_that_goes_by_the_clock_cannot_say_which_rows_are_gone() -> None:
    """A row that was too far ahead when it came may be in time when it goes: then it would go without having come."""
    _, stream = begin()
    totals = stream.key_by("customer").aggregate(md.max("ts").alias("ts"), name="totals")
    assert totals.watermark("ts").aggregate(md.count().alias("n")).name
    limited = totals.watermark("ts", max_ahead="1h", name="limited")
    limited.sink("out", Nowhere())
    for behind in (lambda s: s.aggregate(md.count().alias("n")), lambda s: s.changes()):
        with pytest.raises(FlowError, match=r"'limited' goes by the clock \(max_ahead\)"):
            behind(limited)


def test_a_log_of_changes_is_for_sinks_and_what_has_no_state() -> None:
    flow, stream = begin()
    log = stream.key_by("customer").aggregate(md.count().alias("n"), name="totals").changes(name="log")
    assert list(log.schema) == ["customer", "n", "change"]
    log.filter("change > 0").sink("out", Nowhere())
    for behind in (lambda: log.key_by("n").aggregate(md.count()), lambda: log.deduplicate("n"), lambda: log.changes("again")):
        with pytest.raises(FlowError, match="'log' emits every change as a row of its own"):
            behind()
    assert "changes log <- totals: change is 1 for an added row" in flow.explain()
    with pytest.raises(FlowError, match="there is a column 'n' already"):
        begin()[1].key_by("customer").aggregate(md.count().alias("n")).changes("n")


def chained(above: int = 1, log: bool = False) -> md.Flow:
    flow, stream = begin()
    first = stream.key_by("customer").aggregate(md.count().alias("n"), name="totals")
    behind = first.filter(f"n > {above}", name="many").key_by("n").aggregate(md.count().alias("c"), name="counts")
    (behind.changes(name="log") if log else behind).sink("out", Nowhere())
    return flow


BOTH = ("totals", "counts")
CHAINS: dict[str, list[Any]] = {
    "another filter between": [Replace("many", md.filter("n > 2"))],
    "another operator between": [Insert("few", md.filter("n < 9"), after="many")],
    "one operator less": [Remove("many")],
    "more aggregates of the changes": [Replace("counts", md.aggregate(md.count().alias("c"), md.max("n").alias("most")))],
    "more aggregates before": [Replace("totals", md.aggregate(md.count().alias("n"), md.max("amount").alias("most")))],
    "another aggregate behind": [
        Insert("tap", md.aggregate(md.count(), by="n"), after="totals", before=[]),
        Insert("tap_out", Nowhere(), after="tap"),
    ],
    "a log behind": [Insert("told", Changelog("change"), after="counts")],
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_changes_begins_anew_as_a_whole_or_stays_as_it_is(name: str) -> None:
    changes, plan = CHAINS[name], chained().plan()
    names = {*BOTH, *(["tap"] if "behind" in name and "log" not in name else [])}
    for drop in ((), ("totals",), ("counts",)):
        if name == "another aggregate behind" and drop == ("totals",):
            continue
        with pytest.raises(FlowError, match="must have been given all removed rows, as they are now"):
            modify(plan, changes, StateRules(drop=drop))
    _, effects = modify(plan, changes, StateRules(drop=BOTH))
    assert {fate for name in names if (fate := effects.state[name].kind)} <= {"created", "dropped and begun anew"}


def test_a_chain_that_stays_as_it_is_goes_on_with_its_state() -> None:
    before = chained().plan()
    _, effects = modify(before, [Insert("early", md.filter("amount > 0"), after="time")])
    assert {effects.state[name].kind for name in BOTH} == {"kept"}
    _, effects = modify(before, [Insert("tap", Nowhere(), after="many")])
    assert {effects.state[name].kind for name in BOTH} == {"kept"}
    with pytest.raises(FlowError, match="must have been given all removed rows"):
        modify(before, [Become(chained(above=2).plan())])
    with pytest.raises(FlowError, match="must have been given all removed rows"):
        modify(before, [Become(chained(log=True).plan())])
    with pytest.raises(FlowError, match="must have been given all removed rows"):
        modify(before, [Insert("tap", Nowhere(), after="many")], StateRules(drop=("counts",)))


def test_a_log_of_changes_is_another_log_where_what_it_is_told_begins_anew() -> None:
    """Its rows of before are in it for good: nobody would take them back."""
    before = chained(log=True).plan()
    another = [Replace("counts", md.aggregate(md.max("customer").alias("c")))]
    for changes in (another, [Become(chained(above=2, log=True).plan())], [Insert("tail", md.filter("c > 1"), after="counts")]):
        with pytest.raises(FlowError, match=r"'log' gets removals .* give it another name, so that it is another log"):
            modify(before, changes, StateRules(drop=BOTH))
    modify(before, [*another, Remove("log"), Insert("log2", Changelog("change"), after="counts")], StateRules(drop=BOTH))


@pytest.mark.parametrize("reader", ["log", "table"])
@pytest.mark.parametrize("change", [Remove("newest"), Replace("newest", md.filter("amount > 0"))], ids=["removed", "replaced"])
def test_a_log_or_table_cannot_go_on_where_its_changes_become_final_rows(reader: str, change: Any) -> None:
    """What it has of the changes would stay in it for good."""
    flow, stream = begin()
    newest = stream.key_by("customer").latest(name="newest")
    if reader == "log":
        newest.changes(name="log").sink("out", Nowhere())
    else:
        newest.sink("table", md.memory(table=True))
    with pytest.raises(FlowError, match=rf"'{reader}' gets removals .* give it another name, so that it is another {reader}"):
        modify(flow.plan(), [change], StateRules(drop=("newest",)))


def test_the_refusal_names_only_what_has_state_already() -> None:
    with pytest.raises(FlowError, match=r"give drop_state=\['totals'\], so that they begin anew together"):
        modify(chained().plan(), CHAINS["another aggregate behind"])


def test_an_aggregate_cannot_go_on_where_its_input_becomes_changes() -> None:
    def flow(change: bool) -> md.Flow:
        flow, stream = begin()
        first = stream.key_by("customer").latest(name="op") if change else stream.deduplicate("customer", name="op")
        first.key_by("customer").aggregate(md.count().alias("n"), name="counts").sink("out", Nowhere())
        return flow

    with pytest.raises(FlowError, match="it was an aggregate and is an aggregate over changes"):
        modify(flow(False).plan(), [Become(flow(True).plan())], StateRules(drop=("op",)))
    modify(flow(False).plan(), [Become(flow(True).plan())], StateRules(drop=("op", "counts")))


def test_the_key_of_changes_is_known_as_long_as_its_columns_are_there() -> None:
    flow, stream = begin()
    totals = stream.key_by("customer").aggregate(md.sum("amount").alias("amount"), name="totals")
    totals.filter("amount > 1", name="large").sink("a", Nowhere())
    totals.select("amount", name="narrow").sink("b", Nowhere())
    totals.with_columns("amount + 1 AS more", name="more").sink("c", Nowhere())
    totals.with_columns("upper(customer) AS customer", name="upper").sink("d", Nowhere())
    totals.map_batches(keep, name="mapped").sink("e", Nowhere())
    totals.union(totals, name="both").sink("f", Nowhere())
    found = flow.plan().changes
    assert {name: found[name].key for name in ("a", "b", "c", "d", "e", "f")} == {
        "a": ("customer",), "b": None, "c": ("customer",), "d": None, "e": None, "f": None,
    }  # fmt: skip
    assert {name for name in found if found[name].vanishes} == {"large", "a", "mapped", "e"}


def test_a_join_by_arrival_looks_rows_up_in_changes_by_their_key() -> None:
    _, stream = begin()
    totals = stream.key_by("customer").aggregate(md.sum("amount").alias("total"), name="totals")
    counts = totals.key_by("total").aggregate(md.count().alias("n"), name="counts")
    assert stream.join_latest(totals, on="customer").name
    assert stream.join_latest(totals.filter("total > 1"), on="customer").name
    assert stream.join_latest(counts, left_on="amount", right_on="total").name
    mapped = totals.map_batches(keep, deterministic=True)
    for other in (mapped, totals.select(md_key("customer"), "total")):
        with pytest.raises(FlowError, match="is a stream of changes"):
            stream.join_latest(other, on="customer")
    with pytest.raises(FlowError, match="is a stream of changes"):
        stream.join_latest(totals, left_on="amount", right_on="total")


def test_a_join_by_arrival_is_told_which_rows_of_its_table_are_gone() -> None:
    def flow(above: int, change: bool = True) -> md.Flow:
        flow, stream = begin()
        some = stream.key_by("customer").aggregate(md.count().alias("n"), name="totals") if change else stream.select("customer", "ts AS n")
        many = some.select("customer", pl.col("n").cast(pl.Int64)).filter(f"n > {above}", name="many")
        stream.join_latest(many, on="customer", name="behind").sink("out", Nowhere())
        return flow

    plan = flow(1).plan()
    assert find_retracting(plan.nodes, plan.changes) >= {"totals"}
    with pytest.raises(FlowError, match=r"join_latest 'behind' gets removals .*drop_state=\['behind', 'totals'\]"):
        modify(plan, [Become(flow(2).plan())])
    modify(plan, [Become(flow(2).plan())], StateRules(drop=("totals", "behind")))
    with pytest.raises(FlowError, match="its rows was none and would be changes"):
        modify(flow(1, change=False).plan(), [Become(plan)])


def md_key(column: str) -> str:
    """The column, made anew: nothing says that it is what it was."""
    return f"upper({column}) AS {column}"


def test_modifications_cannot_put_changes_where_none_are_taken() -> None:
    flow, stream = begin()
    totals = stream.key_by("customer").aggregate(md.sum("amount").alias("amount"), name="totals")
    totals.sink("out", Nowhere())
    windows = stream.key_by("customer").window(TEN).aggregate(md.count().alias("n"), name="windows")
    windows.window(TEN).aggregate(md.sum("n").alias("n"), name="over").sink("over_out", Nowhere())
    plan = flow.plan()
    for change in (
        Insert("late", md.aggregate(md.count(), by="customer", window=md.tumbling("1s", time="processing")), after="totals"),
        Insert("visits", md.process(Visits, by="customer"), after="totals"),
        Replace("windows", md.aggregate(md.count().alias("n"), emit="update")),
        Replace("windows", md.aggregate(md.count().alias("n"), lateness="5s")),
    ):
        with pytest.raises(FlowError, match="is a stream of changes"):
            modify(plan, [change])


def test_an_edited_flow_cannot_put_changes_where_none_are_taken() -> None:
    def flow(change: bool) -> md.Flow:
        flow, stream = begin()
        if change:
            stream = stream.key_by("customer").latest(name="op")
        stream.deduplicate("customer", name="once").sink("out", Nowhere())
        return flow

    with pytest.raises(FlowError, match="is a stream of changes"):
        modify(flow(False).plan(), [Become(flow(True).plan())])
