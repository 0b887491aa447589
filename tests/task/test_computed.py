"""Aggregates over expressions, and aggregates of all rows, without a key: through restarts, rescales and both paths of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.errors import BadInput, FlowError
from meander.plan.change.modify import Insert, Replace
from meander.state import compaction as compaction_module

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "price": pl.Float64(), "n": pl.Int64(), "word": pl.String(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
LIMITS = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
ROWS = [(1, 1.5, 2, "3", 1), (2, 2.0, 3, "x", 2), (1, 0.5, None, "5", 3), (1, 4.0, 1, "7", 12)]


def epochs(*given: list[Any]) -> Any:
    return tuple(((0, tuple((k, price, n, word, at * SECOND) for k, price, n, word, at in rows)),) for rows in given)


def stream(flow: md.Flow, *given: list[Any]) -> md.Stream:
    return flow.source("in", Script(COLUMNS, epochs(*given))).watermark("ts", name="time")


def rows_of(out: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(pl.DataFrame(pl.from_arrow(out.table())).select(columns).rows())


SAID: dict[str, Callable[[], list[Any]]] = {
    "SQL": lambda: [
        md.sum("price * n").alias("total"),
        md.max("length(word) + 1").alias("longest"),
        md.count(where="price > 1").alias("dear"),
    ],
    "Polars": lambda: [
        md.sum(pl.col("price") * pl.col("n")).alias("total"),
        md.max(pl.col("word").str.len_bytes() + 1).alias("longest"),
        md.count(where=pl.col("price") > 1).alias("dear"),
    ],
}


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("where", ["aggregate", "window", "session"])
def test_aggregates_are_of_expressions(tmp_path: Path, said: str, where: str) -> None:
    flow, out = md.Flow("f"), md.memory()
    keyed = stream(flow, ROWS[:2], ROWS[2:]).key_by("k")
    cut: Any = {"aggregate": keyed, "window": keyed.window(md.tumbling("10s")), "session": keyed.window(md.session("5s"))}[where]
    cut.aggregate(*SAID[said](), name="a").sink("out", out)
    Local(flow, tmp_path).run(flush=True)
    expected = {
        "aggregate": [(1, 3.0, 2, 1), (1, 7.0, 2, 2), (2, 6.0, 2, 1)],
        "window": [(1, 3.0, 2, 1), (1, 4.0, 2, 1), (2, 6.0, 2, 1)],
        "session": [(1, 3.0, 2, 1), (1, 4.0, 2, 1), (2, 6.0, 2, 1)],
    }
    assert rows_of(out, "k", "total", "longest", "dear") == expected[where]


def test_a_row_for_which_an_expression_fails_is_a_dead_letter_and_the_others_count(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    stream(flow, ROWS).key_by("k").aggregate(md.sum("CAST(word AS INT)").alias("s"), md.count().alias("n"), name="a").sink("out", out)
    local = Local(flow, tmp_path)
    local.run()
    assert rows_of(out, "k", "s", "n") == [(1, 15, 3)]
    (letters,) = [pl.read_parquet(path) for path in (tmp_path / "dead_letters").glob("*.parquet")]
    assert letters.get_column("operator").to_list() == ["a"]
    assert '"word": "x"' in letters.get_column("content")[0]
    with pytest.raises(BadInput, match="operator 'a'"):
        Local(flow, tmp_path / "strict", strict=True).run()


def test_late_rows_have_the_columns_of_the_input_alone(tmp_path: Path) -> None:
    flow, late = md.Flow("f"), md.memory()
    windows = stream(flow, ROWS[3:], ROWS[3:], ROWS[:1]).window(md.tumbling("5s")).aggregate(md.sum("price * n").alias("s"), name="w")
    windows.sink("out", md.memory())
    windows.late().sink("late", late)
    Local(flow, tmp_path, ahead=False).run()
    assert late.table().column_names == list(COLUMNS)
    assert late.table().num_rows == 1


def test_a_column_whose_name_looks_like_an_expression_is_that_column() -> None:
    flow = md.Flow("f")
    strange = flow.source("in", Script({"k": pl.Int64(), "a + b": pl.Int64()}, ()))
    made = strange.key_by("k").aggregate(md.sum("a + b"), name="s")
    assert made.schema == {"k": pl.Int64(), "sum_a + b": pl.Int64()}


WRONG: dict[str, tuple[Callable[[md.Stream], Any], str]] = {
    "no name": (lambda s: s.key_by("k").aggregate(md.sum("price * n")), r"sum\(price \* n\): give it a name, as in .alias\('total'\)"),
    "no column": (lambda s: s.key_by("k").aggregate(md.sum("price * m").alias("x")), "there is no column 'm'"),
    "no SQL": (lambda s: s.key_by("k").aggregate(md.sum("price *").alias("x")), "aggregate after 'time': 'price \\*' is not an SQL"),
    "other rows": (lambda s: s.key_by("k").aggregate(md.sum(pl.col("n") - pl.col("n").shift(1)).alias("x")), "not row-local"),
    "a clock": (lambda s: s.key_by("k").aggregate(md.max("now()").alias("x")), "the time at which the flow was written"),
    "no number": (lambda s: s.key_by("k").aggregate(md.sum("word || 'x'").alias("x")), "is String; it needs a number"),
    "two conditions": (lambda s: md.count("n", where="n > 1"), "give one of them"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_expression_that_makes_no_sense_is_refused(case: str) -> None:
    make, says = WRONG[case]
    with pytest.raises(FlowError, match=says):
        make(stream(md.Flow("f"), ROWS))


def test_two_expressions_that_look_alike_are_two(tmp_path: Path) -> None:
    """Polars shows a list of values as the word Series."""
    flow, out = md.Flow("f"), md.memory()
    few, many = (md.sum(pl.col("n").is_in(given).cast(pl.Int64)).alias(f"in_{len(given)}") for given in ([1], [1, 2, 3]))
    stream(flow, ROWS).aggregate(few, many, name="a").sink("out", out)
    Local(flow, tmp_path).run()
    assert rows_of(out, "in_1", "in_3") == [(1, 3)]


def test_expressions_come_with_changes_too(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    stream(flow, ROWS[:2], ROWS[2:]).key_by("k").aggregate(md.count().alias("rows"), name="a").sink("out", out)
    local = Local(flow, tmp_path, ahead=False)
    local.step()
    told = md.Replace("a", md.aggregate(md.count().alias("rows"), md.sum("price * n").alias("total")))
    local.propose(told)
    local.run()
    assert pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "a"))).sort("k").rows() == [(1, 3, 4.0), (2, 1, None)]
    again = Local(flow, tmp_path, ahead=False)
    assert again.manifest.plan["version"] == 2


def test_the_mean_of_decimals_is_exact_until_it_is_divided(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    columns = {"k": pl.Int64(), "cents": pl.Int64()}
    rows = flow.source("in", Script(columns, (((0, ((1, 10**17), (1, 1), (1, 2), (1, -(10**17)))),),)))
    exact = rows.with_columns((pl.col("cents").cast(pl.Decimal(30, 2)) / 100).cast(pl.Decimal(20, 2)).alias("price"))
    exact.key_by("k").aggregate(md.mean("price").alias("mean"), md.var("price").alias("var"), name="a").sink("out", out)
    Local(flow, tmp_path).run()
    assert rows_of(out, "mean") == [(float(Decimal("0.03")) / 4,)]


# -- without a key ----------------------------------------------------------------------------------------------------


class Kinds(md.Aggregator):
    """One of a user's own."""

    inputs = ("n",)

    def init(self) -> dict[str, pl.Expr]:
        return {"n": pl.col("n").count().cast(pl.Int64)}

    def merge(self) -> dict[str, pl.Expr]:
        return {"n": self.state("n").sum()}

    def finish(self) -> pl.Expr:
        return self.state("n") * 10


numbers = st.tuples(st.integers(0, 3), st.sampled_from([0.1, 0.2, 1e16, -1e16, 3.3]), st.none() | st.integers(0, 5))
some = st.lists(st.tuples(st.integers(0, 1), st.lists(numbers, max_size=6)), min_size=1, max_size=3)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_an_aggregate_without_a_key_is_one_row_and_the_same_at_any_parallelism(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(some, min_size=1, max_size=5))
    script = tuple(tuple((part, tuple((k, p, n, f"{n}", 0) for k, p, n in rows)) for part, rows in splits) for splits in drawn)
    found: list[list[Any]] = []
    for parallelism, small in ((1, True), (3, False)):
        flow, out, folder = md.Flow("all"), md.memory(), tmp_path_factory.mktemp("all")
        everything = flow.source("in", Script(COLUMNS, script)).aggregate(
            md.count().alias("rows"), md.sum("price").alias("s"), md.sum("price * n").alias("t"), md.collect("n").alias("ns"),
            md.count_distinct("n").alias("kinds"), md.last("k").alias("last"), Kinds().alias("user"), name="a",
        )  # fmt: skip
        assert everything.schema.names() == ["rows", "s", "t", "ns", "kinds", "last", "user"]
        everything.sink("out", out)
        local = Local(flow, folder, parallelism, small)
        with constants(FEWEST=(compaction_module, 2)):
            while local.step():
                if data.draw(st.integers(0, 3)) == 0:
                    local = Local(flow, folder, parallelism, small)
                if data.draw(st.integers(0, 2)) == 0:
                    local.loop.reroute("a", rebalance(local.loop.routing["a"], data.draw(st.integers(1, 4))))
        shown = out.table().to_pylist()
        seen: list[Any] = []
        rows = 0
        expected = []
        for splits in script:
            came = [row for _, some_rows in splits for row in some_rows]
            rows, seen = rows + len(came), seen + [row[2] for row in came if row[2] is not None]
            if came:
                expected.append((rows, seen, len(set(seen)), came[-1][0], 10 * len(seen)))
        assert [(r["rows"], r["ns"], r["kinds"], r["last"], r["user"]) for r in shown] == expected
        if expected:
            assert md.read_state(folder, "a", run_code=True).to_pylist() == shown[-1:]
        found.append(shown)
    assert found[0] == found[1], "to the last bit"


def test_an_aggregate_without_a_key_has_no_row_before_there_is_one(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    stream(flow, [], ROWS[:1]).aggregate(md.count().alias("n"), name="a").sink("out", out)
    local = Local(flow, tmp_path)
    assert "of all rows: count() as n" in flow.explain()
    local.step()
    assert out.table().num_rows == 0
    local.run()
    assert rows_of(out, "n") == [(1,)]


def test_an_aggregate_without_a_key_can_be_changed_and_put_into_a_flow_that_runs(tmp_path: Path) -> None:
    flow, out, new = md.Flow("f"), md.memory(), md.memory()
    stream(flow, ROWS[:2], ROWS[2:3], ROWS[3:]).aggregate(md.count().alias("n"), name="a").sink("out", out)
    local = Local(flow, tmp_path, ahead=False)
    local.step()
    local.propose(Replace("a", md.aggregate(md.count().alias("n"), md.sum("n").alias("s"))))
    local.step()
    local.propose(Insert("b", md.aggregate(md.count().alias("m"), by=[]), after="time", before=[]), Insert("new", new, after="b"))
    local.run()
    assert rows_of(new, "m") == [(1,)]
    assert md.read_state(tmp_path, "a").to_pylist() == [{"n": 4, "s": 1}]
    with pytest.raises(FlowError, match=r"it has no key; say by='column', .* or by=\[\]"):
        local.propose(Insert("c", md.aggregate(md.count()), after="time", before=[]))


def test_the_state_of_an_aggregate_without_a_key_can_be_filled_and_upgraded(tmp_path: Path) -> None:
    rules: dict[str, Any] = {
        "backfill": {"a": {"more": 5}},
        "upgrade": {"a": lambda rows: rows.with_columns(pl.lit(7, pl.Int64()).alias("more.n"))},
    }
    for rule, expected in (("backfill", 6), ("upgrade", 8)):
        flow, out, folder = md.Flow("f"), md.memory(), tmp_path / rule
        kept = [md.count().alias("n"), md.count_distinct("k").alias("kinds"), md.collect("n").alias("all")]
        stream(flow, ROWS[:3], ROWS[3:]).aggregate(*kept, name="a").sink("out", out)
        local = Local(flow, folder, ahead=False)
        local.step()
        trial = local.propose(Replace("a", md.aggregate(*kept, md.count().alias("more"))), **{rule: rules[rule]})
        local.step()
        trial.done.result(timeout=0)
        local = Local(flow, folder, 1, ahead=False)
        local.run()
        assert md.read_state(folder, "a").to_pylist() == [{"n": 4, "kinds": 2, "all": [2, 3, 1], "more": expected}]


def test_aggregates_of_expressions_over_changes_can_be_changed_with_their_chain(tmp_path: Path) -> None:
    def flow(*more: Any, early: str = "n < 9") -> md.Flow:
        flow = md.Flow("f")
        few = stream(flow, ROWS[:2], ROWS[2:]).filter(early, name="few")
        totals = few.key_by("k").aggregate(md.sum("n * 2").alias("total"), name="totals")
        totals.aggregate(md.sum("total * 10").alias("sum"), *more, name="a").sink("out", md.memory())
        return flow

    Local(flow(), tmp_path).step()
    local = Local(flow(early="n < 3"), tmp_path, apply=True)
    local.run()
    assert local.trial is not None
    local.trial.done.result(timeout=0)
    assert md.read_state(tmp_path, "a").to_pylist() == [{"sum": 120}]
    most = md.max("total * 10").alias("most")
    with pytest.raises(FlowError, match="must have been given all removed rows"):
        Local(flow(most, early="n < 3"), tmp_path, apply=True)
    Local(flow(most, early="n < 3"), tmp_path, apply={"drop_state": ["a", "totals"]}).run()


@pytest.mark.parametrize("given", [3, None, ["n"]])
def test_what_is_neither_text_nor_an_expression_is_refused(given: Any) -> None:
    with pytest.raises(FlowError, match="it is of a column's name, of SQL text, or of a Polars expression"):
        md.sum(given)


def test_a_column_that_is_called_like_the_key_of_all_rows_is_refused() -> None:
    rows = md.Flow("f").source("in", Script({"__all": pl.Int64()}, ()))
    assert rows.key_by("__all").aggregate(md.count()).name
    with pytest.raises(FlowError, match="a column is named '__all'"):
        rows.aggregate(md.sum("__all"))
