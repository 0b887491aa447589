"""What a modification makes of a plan, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

import meander as md
from meander.errors import FlowError
from meander.plan.change.modify import Insert, Remove, Replace, StateRules, modify
from meander.plan.graph import Plan

COLUMNS: dict[str, Any] = {
    "customer": pl.String(),
    "small": pl.Int32(),
    "amount": pl.Float64(),
    "ts": pl.Datetime("us"),
    "tags": pl.List(pl.String()),
}


def plan() -> Plan:
    flow = md.Flow("orders")
    orders = flow.source("orders", rows(**COLUMNS)).watermark("ts", grace="5s", name="time")
    positive = orders.filter("amount > 0", name="positive")
    clean = positive.map_batches(lambda frame: frame.with_columns(pl.col("amount").round(2)), name="clean")
    totals = clean.key_by("customer").aggregate(
        md.count().alias("n"),
        md.sum("amount").alias("total"),
        md.max("small").alias("most"),
        md.collect("small").alias("all"),
        name="totals",
    )
    totals.sink("out", Nowhere())
    windows = clean.key_by("customer").window(md.sliding("20s", "10s"))
    closed = windows.aggregate(md.count().alias("n"), md.sum("amount").alias("total"), lateness="10s", name="windows")
    closed.sink("windowed", Nowhere())
    closed.late(name="late").sink("late_out", Nowhere())
    both = positive.select("customer", "amount", name="narrow").union(orders.select("customer", "amount", name="other"), name="both")
    both.sink("united", Nowhere())
    return flow.plan()


KEPT = (md.count().alias("n"), md.sum("amount").alias("total"), md.max("small").alias("most"), md.collect("small").alias("all"))


def changed(*changes: Any, **rules: Any) -> tuple[Plan, Any]:
    return modify(plan(), changes, StateRules(**rules))


def fails(frame: pl.DataFrame) -> pl.DataFrame:
    raise ValueError("no")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no change": (lambda: changed(), "without changes"),
    "no change at all": (lambda: changed("positive"), "'positive' is no change"),
    "an unknown name": (lambda: changed(Replace("positiv", md.filter("amount > 1"))), "no operator 'positiv'.*did you mean 'positive'"),
    "an unknown place": (lambda: changed(Insert("x", md.filter("amount > 1"), after="nowhere")), "no operator 'nowhere'"),
    "a name that is taken": (lambda: changed(Insert("clean", md.filter("amount > 1"), after="positive")), "already a map_batches"),
    "a name in another case": (lambda: changed(Insert("Clean", md.filter("amount > 1"), after="positive")), "only in case"),
    "a name that is none": (lambda: changed(Insert("no bots", md.filter("amount > 1"), after="positive")), "not a valid name"),
    "an unknown column": (lambda: changed(Replace("positive", md.filter("amuont > 1"))), "no column 'amuont'.*did you mean 'amount'"),
    "a predicate that is none": (lambda: changed(Replace("positive", md.filter("amount + 1"))), "not one Boolean"),
    "a type that does not fit": (lambda: changed(Replace("positive", md.filter("customer > 1"))), "filter 'positive'"),
    "an expression over rows": (lambda: changed(Replace("positive", md.filter(pl.col("amount") > pl.col("amount").mean()))), "row-local"),
    "a column that is needed downstream": (lambda: changed(Insert("s", md.select("customer", "ts", "small"), after="clean")), "'amount'"),
    "a key of another type": (
        lambda: changed(Insert("c", md.with_columns("CAST(small AS BIGINT) AS customer"), after="clean", before="totals")),
        "aggregate 'totals' cannot go on.*key column 'customer' is String and would be Int64.*drop_state",
    ),
    "a union that does not fit any more": (
        lambda: changed(Replace("narrow", md.select("customer", "small AS amount"))),
        "differs in amount",
    ),
    "a function that fails": (lambda: changed(Replace("clean", md.map_batches(fails))), "ValueError: no"),
    "a function that returns nothing": (lambda: changed(Replace("clean", md.map_batches(lambda frame: None))), "returned None"),
    "no operator": (lambda: changed(Replace("clean", 7)), "7 is no operator"),
    "a filter for a source": (lambda: changed(Replace("orders", md.filter("amount > 1"))), "it is a source"),
    "a sink for a filter": (lambda: changed(Replace("positive", Nowhere())), "it is a filter, and sink cannot take its place"),
    "a source in the middle": (lambda: changed(Insert("more", rows(**COLUMNS), after="positive")), "a source has no input"),
    "something behind a sink": (lambda: changed(Insert("x", md.filter("amount > 1"), after="out")), "is a sink"),
    "an edge that is none": (lambda: changed(Insert("x", md.filter("amount > 1"), after="time", before="clean")), "does not read 'time'"),
    "a sink before something": (lambda: changed(Insert("tap", Nowhere(), after="time", before="positive")), "leave out before="),
    "without a source": (lambda: changed(Remove("orders")), "it is a source"),
    "without a union": (lambda: changed(Remove("both")), "has 2 inputs"),
    "rows that reach no sink": (lambda: changed(Remove("united")), "reach no sink"),
    "state that would go": (lambda: changed(Remove("totals")), "keeps state, which goes with it"),
    "late rows without an operator": (lambda: changed(Remove("windows"), drop=["windows"]), "'late' is the stream of its late rows"),
    "late rows of what has none": (
        lambda: changed(Replace("windows", md.filter("amount > 1")), drop=["windows"]),
        "'late' takes its late rows",
    ),
    "other keys": (lambda: changed(Replace("totals", md.aggregate(*KEPT, by="small"))), "keyed by customer and would be by small"),
    "a key that is none": (lambda: changed(Replace("totals", md.aggregate(md.count(), by="tags")), drop=["totals"]), "keys can be"),
    "another meaning": (
        lambda: changed(Replace("totals", md.aggregate(md.count().alias("n"), md.min("small").alias("most")))),
        r"'most.value' held max\(small\) and would hold min\(small\): choose another alias",
    ),
    "another type of state": (
        lambda: changed(Insert("c", md.with_columns("CAST(small AS VARCHAR) AS small"), after="clean", before="totals")),
        "'most.value' is Int32 and would be String",
    ),
    "an aggregate without a key": (lambda: changed(Insert("x", md.aggregate(md.count()), after="clean", before="totals")), "it has no key"),
    "an aggregate without a column": (lambda: changed(Replace("totals", md.aggregate(md.sum("amuont")))), "no column 'amuont'"),
    "two of a name": (lambda: changed(Replace("totals", md.aggregate(md.count().alias("n"), md.sum("amount").alias("n")))), "two columns"),
    "a window without a time": (
        lambda: changed(Insert("w", md.aggregate(md.count(), by="customer", window=md.tumbling("10s")), after="totals", before="out")),
        "no event time",
    ),
    "a longer window": (
        lambda: changed(Replace("windows", md.aggregate(md.count().alias("n"), window=md.sliding("30s", "10s")))),
        "would grow from 20s to 30s: what they need was dropped",
    ),
    "windows of other pieces": (
        lambda: changed(Replace("windows", md.aggregate(md.count().alias("n"), window=md.tumbling("7s")))),
        "not made of the same pieces",
    ),
    "more lateness": (lambda: changed(Replace("windows", md.aggregate(md.count().alias("n"), lateness="1h"))), "lateness would grow"),
    "another time": (lambda: changed(Insert("again", md.watermark("ts"), after="clean", before="windows")), "'windows' cannot go on"),
    "a watermark of another column": (
        lambda: changed(Insert("c", md.with_columns("ts AS born"), after="orders"), Replace("time", md.watermark("born"))),
        "it follows 'ts' and would follow 'born'",
    ),
    "no watermark any more": (lambda: changed(Remove("time")), "windows"),
    "a source with other columns": (lambda: changed(Replace("orders", rows(a=pl.Int64()), resume=False)), "there is no column 'ts'"),
    "a source that may or may not go on": (lambda: changed(Replace("orders", rows(**COLUMNS))), "resume=True.*resume=False"),
    "resume for what is no source": (lambda: changed(Replace("positive", md.filter("amount > 1"), resume=True)), "resume= is for sources"),
    "dropping what is not there": (lambda: changed(Replace("positive", md.filter("amount > 1")), drop=["positive"]), "has no state"),
    "an upgrade that fails": (lambda: changed(Replace("totals", md.aggregate(*KEPT)), upgrade={"totals": fails}), "ValueError: no"),
    "an upgrade that makes something else": (
        lambda: changed(
            Replace("totals", md.aggregate(md.count().alias("n"), md.min("small").alias("most"))),
            upgrade={"totals": lambda f: f.select("n.n")},
        ),
        "it must return customer .*it returned n.n",
    ),
    "an upgrade of keys": (
        lambda: changed(Replace("totals", md.aggregate(*KEPT, by="small")), upgrade={"totals": lambda f: f}),
        "rows can be rewritten, but it was keyed by",
    ),
    "a backfill of what is not new": (lambda: changed(Replace("totals", md.aggregate(*KEPT)), backfill={"totals": {"n": 1}}), "is not new"),
    "a backfill of half a state": (
        lambda: changed(Replace("totals", md.aggregate(*KEPT, md.mean("amount").alias("m"))), backfill={"totals": {"m": 1.0}}),
        "has the parts n, sum",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_what_and_why(case: str) -> None:
    change, why = REFUSED[case]
    with pytest.raises(FlowError, match=f"(?s){why}"):
        change()


def test_a_filter_with_another_condition_keeps_everything_else() -> None:
    before = plan()
    after, effects = modify(before, [Replace("positive", md.filter("amount > 10"))])
    assert (before.version, after.version) == (1, 2)
    assert [node.name for node in after.nodes] == [node.name for node in before.nodes]
    assert effects.touched == {"positive"}
    assert effects.operators == ("filter 'positive' differs (was: amount > 0; is: amount > 10)",)
    assert {name: fate.words() for name, fate in effects.state.items()} == {"totals": "kept", "windows": "kept"}
    assert json.loads(json.dumps(effects.to_json()))["state"] == {"totals": "kept", "windows": "kept"}
    assert "plan: filter 'positive' differs" in str(effects)


def test_an_insertion_stands_before_all_readers_or_one() -> None:
    after, _ = changed(Insert("no_bots", md.filter("customer <> 'bot'"), after="positive"))
    assert after.node("clean").inputs == after.node("narrow").inputs == ("no_bots",)
    one, _ = changed(Insert("no_bots", md.filter("customer <> 'bot'"), after="positive", before="clean"))
    assert (one.node("clean").inputs, one.node("narrow").inputs) == (("no_bots",), ("positive",))
    assert one.node("late").inputs == one.node("windows").inputs
    gone, effects = modify(after, [Remove("no_bots")])
    assert gone.digest() == plan().digest()
    assert effects.operators[-1] == "filter 'no_bots' is not there any more"


def test_operators_that_stay_keep_their_order() -> None:
    before = [node.name for node in plan().nodes]
    after, _ = changed(
        Insert("first", md.filter("amount > 1"), after="orders"),
        Insert("tap", Nowhere(), after="totals"),
        Insert("by_small", md.aggregate(md.count().alias("n"), md.sum("amount").alias("amount"), by="customer"), after="narrow"),
        Insert("narrower", md.select("customer", "amount"), after="by_small"),
    )
    assert [node.name for node in after.nodes if node.name in before] == before


def test_a_late_stream_follows_what_is_put_before_its_operator() -> None:
    after, _ = changed(Insert("x", md.filter("amount > 3"), after="clean", before="windows"))
    assert after.node("late").inputs == ("x",)


def test_several_changes_are_one() -> None:
    renamed, effects = changed(
        Insert("cents", md.with_columns("CAST(amount * 100 AS BIGINT) AS cents"), after="clean"),
        Replace("totals", md.aggregate(*KEPT, md.sum("cents").alias("cents"))),
        Insert("tap", Nowhere(), after="cents"),
    )
    assert renamed.schema("totals")["cents"] == pl.Int64
    assert effects.state["totals"].words() == "kept, with the new cents.sum"
    assert effects.schemas["totals"] == ("+cents Int64",)


def test_a_function_behind_new_columns_lets_them_through() -> None:
    """What was learned of it before is not held against it."""
    after, _ = changed(Insert("cents", md.with_columns("amount * 100 AS cents"), after="positive"))
    assert "cents" in after.schema("clean")


def test_state_columns_come_go_and_grow() -> None:
    wide, effects = changed(Insert("c", md.with_columns("CAST(small AS BIGINT) AS small"), after="orders"))
    assert effects.state["totals"].widened == ("most.value", "all.value")
    fewer, effects = modify(wide, [Replace("totals", md.aggregate(*KEPT[:2], md.collect("small").alias("all")))])
    assert effects.state["totals"].removed == ("most.value",)
    with pytest.raises(FlowError, match=r"'most.value' was removed from it before.*choose another alias"):
        modify(fewer, [Replace("totals", md.aggregate(*KEPT))])
    anew, effects = modify(fewer, [Replace("totals", md.aggregate(*KEPT))], StateRules(["totals"]))
    assert effects.state["totals"].words() == "dropped and begun anew"
    assert (effects.drops, anew.retired) == ({"totals"}, {})


def test_how_a_value_is_shown_can_change() -> None:
    before, _ = changed(Replace("totals", md.aggregate(md.std("amount").alias("x"), md.quantile("amount", 0.5).alias("y"))))
    _, effects = modify(before, [Replace("totals", md.aggregate(md.var("amount").alias("x"), md.quantile("amount", 0.9).alias("y")))])
    assert effects.state["totals"].words() == "kept"


def test_windows_can_become_shorter_emit_otherwise_and_wait_less() -> None:
    kept = (md.count().alias("n"), md.sum("amount").alias("total"))
    for op in (
        md.aggregate(*kept, window=md.tumbling("10s")),
        md.aggregate(*kept, emit="update"),
        md.aggregate(*kept, lateness="5s"),
        md.aggregate(*kept, md.max("small").alias("most")),
    ):
        _, effects = changed(Replace("windows", op))
        assert effects.state["windows"].kind == "kept"
    for grace in ("1s", "1m"):
        _, effects = changed(Replace("time", md.watermark("ts", grace=grace, idle="1h")))
        assert effects.state["windows"].words() == "kept"


def test_state_that_cannot_go_on_is_dropped_where_that_is_said() -> None:
    _, effects = changed(Replace("totals", md.aggregate(*KEPT, by="small")), drop=["totals"])
    assert effects.drops == {"totals"}
    cast = Insert("c", md.with_columns("CAST(small AS BIGINT) AS customer"), after="clean")
    _, effects = changed(cast, drop=True)
    assert effects.drops == {"totals", "windows"}
    _, effects = changed(Replace("positive", md.filter("amount > 10")), drop=True)
    assert effects.drops == frozenset()


def test_an_upgrade_and_a_backfill_make_the_rows_that_are_wanted() -> None:
    op = md.aggregate(*KEPT, md.mean("amount").alias("m"))
    _, effects = changed(Replace("totals", op), backfill={"totals": {"m": {"n": 2, "sum": 3.0}}})
    old = pl.DataFrame({"customer": ["a"], "n.n": [1], "total.sum": [2.0], "most.value": pl.Series([3], dtype=pl.Int32), "all.n": [4]})
    assert effects.upgrades["totals"](old).row(0, named=True) == {**old.row(0, named=True), "m.n": 2, "m.sum": 3.0}
    lesser = md.aggregate(md.count().alias("n"), md.min("small").alias("most"))
    _, effects = changed(Replace("totals", lesser), upgrade={"totals": lambda f: f.select("customer", "n.n", pl.col("most.value") * 0)})
    assert effects.state["totals"].kind == "upgraded"


def test_a_source_is_swapped_for_one_with_the_same_columns() -> None:
    _, effects = changed(Replace("orders", rows(**COLUMNS), resume=False))
    assert effects.restarts == {"orders"}
    assert changed(Replace("orders", rows(**COLUMNS), resume=True))[1].restarts == frozenset()
