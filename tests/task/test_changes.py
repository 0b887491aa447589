"""Streams of changes: whatever follows on them is what it would be over all input at once, however that is cut into epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script
from tests.task.changing import Drawn, table_of

import meander as md
from meander.connect.source import Batch

Epochs = list[list[tuple[Any, ...]]]


def run(folder: Path, epochs: Epochs, parallelism: int, make: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The log of new rows, and the log of changes."""
    flow, out, log = md.Flow("f"), md.memory(), md.memory()
    columns = {"k": pl.Int64(), "v": pl.Int64()}
    stream = make(flow.source("in", Script(columns, tuple(((0, tuple(rows)),) for rows in epochs))))
    stream.sink("out", out)
    stream.changes().sink("log_out", log)
    Local(flow, folder, parallelism).run()
    return out.frame(), log.frame()


def current(log: pl.DataFrame) -> list[tuple[Any, ...]]:
    """The table, by the expression that the documentation has."""
    found = log.group_by(pl.exclude("change")).agg(pl.col("change").cast(pl.Int64).sum()).filter(pl.col("change") > 0)
    return sorted(found.drop("change").rows())


CUTS: dict[str, Epochs] = {
    "one epoch": [[(1, 1), (1, 1), (2, 5), (1, 4)]],
    "an epoch per row": [[(1, 1)], [(1, 1)], [(2, 5)], [(1, 4)]],
    "two epochs": [[(1, 1), (2, 5)], [(1, 1), (1, 4)]],
}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("cut", CUTS)
def test_a_sum_of_sums_is_the_sum_whatever_the_epochs(tmp_path: Path, cut: str, parallelism: int) -> None:
    def sums(s: md.Stream) -> md.Stream:
        totals = s.key_by("k").aggregate(md.sum("v").alias("v"), name="totals")
        return totals.aggregate(md.sum("v").alias("v"), md.max("v").alias("most"), name="grand")

    out, log = run(tmp_path, CUTS[cut], parallelism, sums)
    assert out.rows()[-1] == (11, 6)
    assert current(log) == [(11, 6)]
    assert md.read_state(tmp_path, "grand").to_pylist() == [{"v": 11, "most": 6}]


@pytest.mark.parametrize("cut", CUTS)
def test_an_aggregate_needs_no_key(tmp_path: Path, cut: str) -> None:
    out, log = run(tmp_path, CUTS[cut], 3, lambda s: s.aggregate(md.sum("v").alias("v"), md.count().alias("n"), name="all"))
    assert out.rows()[-1] == (11, 4)
    assert current(log) == [(11, 4)]
    assert md.read_state(tmp_path, "all").to_pylist() == [{"v": 11, "n": 4}]


def test_an_aggregate_without_a_key_has_no_row_when_all_rows_are_gone(tmp_path: Path) -> None:
    def none(s: md.Stream) -> md.Stream:
        return s.key_by("k").aggregate(md.sum("v").alias("v"), name="sums").filter("v > 3").aggregate(md.count().alias("n"), name="all")

    _, log = run(tmp_path, [[(1, 5)], [(2, 4)], [(1, -5)], [(2, -9)]], 2, none)
    assert log.rows() == [(1, 1), (1, -1), (2, 1), (2, -1), (1, 1), (1, -1)]
    assert md.read_state(tmp_path, "all").to_pylist() == []


@pytest.mark.parametrize("cut", CUTS)
def test_a_count_per_bracket_forgets_keys_that_have_gone_on(tmp_path: Path, cut: str) -> None:
    def brackets(s: md.Stream) -> md.Stream:
        totals = s.key_by("k").aggregate(md.sum("v").alias("v"), name="totals")
        return totals.with_columns("v // 5 AS bracket").key_by("bracket").aggregate(md.count().alias("n"), name="brackets")

    _, log = run(tmp_path, CUTS[cut], 2, brackets)
    assert current(log) == [(1, 2)]
    assert md.read_state(tmp_path, "brackets").to_pylist() == [{"bracket": 1, "n": 2}]


@pytest.mark.parametrize("cut", CUTS)
def test_a_list_of_the_largest_counts_lets_rows_go_again(tmp_path: Path, cut: str) -> None:
    def best(s: md.Stream) -> md.Stream:
        counts = s.key_by("k").aggregate(md.count().alias("n"), md.sum("v").alias("v"), name="counts")
        small = counts.filter("v < 6").with_columns(pl.lit("all").alias("who"))
        return small.key_by("who").top(2, by="n", name="best").select("who", "k", "n", "rank")

    _, log = run(tmp_path, CUTS[cut], 2, best)
    assert current(log) == [("all", 2, 1, 1)]
    assert md.read_state(tmp_path, "best").to_pylist() == [{"who": "all", "k": 2, "n": 1, "v": 5, "rank": 1}]


NUMBERS: dict[str, tuple[Any, list[Any]]] = {
    "small": (pl.Int8(), [100, 100, -100, 7]),
    "unsigned": (pl.UInt32(), [7, 4_000_000_000, 1, 3]),
    "long": (pl.UInt64(), [(1 << 63) + 5, 2, 9, 1]),
    "decimal": (pl.Decimal(10, 2), [10, 20, -30, 777]),
    "duration": (pl.Duration("us"), [86_400_000_000, 1, 0, -3]),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_every_type_are_taken_back_to_the_last_digit(tmp_path: Path, kind: str) -> None:
    dtype, values = NUMBERS[kind]
    flow, log = md.Flow("f"), md.memory()
    epochs = tuple(((0, ((number % 2, value),)),) for number, value in enumerate((*values, None)))
    stream = flow.source("in", Typed({"k": pl.Int64(), "v": dtype}, epochs))
    last = stream.key_by("k").aggregate(md.max("v").alias("most"), md.min("v").alias("v"), name="last")
    one = last.with_columns(pl.lit(1).alias("one")).key_by("one")
    one.aggregate(md.sum("v").alias("v"), md.max("v").alias("hi"), name="op").changes().sink("log", log)
    Local(flow, tmp_path, 2).run()
    low = [min(values[::2]), min(values[1::2])]
    ((_, total, highest),) = current(log.frame())
    wanted = pl.DataFrame({"v": [sum(low), max(low)]}, {"v": pl.UInt64() if kind == "long" else pl.Int64()}).cast(
        pl.Decimal(38, 2) if kind == "decimal" else dtype if kind == "duration" else pl.UInt64() if kind == "long" else pl.Int64()
    )
    assert [total, highest] == wanted.get_column("v").to_list()


class Typed(Script):
    """A script with whole numbers, which become what the columns are."""

    def read(self, payload: dict[str, Any]) -> Batch:
        kinds = dict(self.schema())
        whole = pl.UInt64() if kinds["v"] == pl.UInt64() else pl.Int64()
        return Batch(pl.DataFrame(payload["rows"], {"k": pl.Int64(), "v": whole}, orient="row").cast(kinds))


def test_what_is_as_it_was_is_told_to_plain_sinks_alone(tmp_path: Path) -> None:
    def most(s: md.Stream) -> md.Stream:
        return s.key_by("k").aggregate(md.max("v").alias("v"), name="most")

    out, log = run(tmp_path, [[(1, 5)], [(1, 3)], [(1, 9)]], 2, most)
    assert out.rows() == [(1, 5), (1, 5), (1, 9)]
    assert log.rows() == [(1, 5, 1), (1, 5, -1), (1, 9, 1)]


def test_a_row_that_cannot_be_processed_is_one_dead_letter(tmp_path: Path) -> None:
    def no_seven(frame: pl.DataFrame) -> pl.DataFrame:
        if (frame.get_column("v") == 7).any():
            raise ValueError("seven")
        return frame

    def counted(s: md.Stream) -> md.Stream:
        totals = s.key_by("k").aggregate(md.sum("v").alias("v"), name="totals")
        sure = totals.map_batches(no_seven, name="no_seven", deterministic=True)
        return sure.with_columns(pl.lit(1).alias("one")).key_by("one").aggregate(md.sum("v").alias("v"), name="grand")

    _, log = run(tmp_path, [[(1, 3), (2, 1)], [(1, 4)], [(1, 1)], [(2, 6), (1, 1)]], 2, counted)
    assert current(log) == [(1, 9)]
    letters = pl.DataFrame(pl.from_arrow(md.read_dead_letters(tmp_path)))
    assert letters.select("epoch", "operator").rows() == [(2, "no_seven"), (4, "no_seven")]


@pytest.mark.many
@pytest.mark.parametrize("seed", range(40))
def test_any_flow_over_changes_is_its_query_over_all_input(tmp_path: Path, seed: int) -> None:
    drawn = Drawn(seed)
    log, out, epochs = drawn.run(tmp_path)
    check(drawn, log, out, epochs)


def check(drawn: Drawn, log: pl.DataFrame, out: pl.DataFrame, epochs: int) -> None:
    columns, expected = drawn.expected()
    found = table_of(log).select(columns).rows() if log.height else []
    told = f"seed {drawn.seed}: {drawn.words}, {len(drawn.rows)} rows in {epochs} epochs"
    assert sorted(map(repr, found)) == sorted(map(repr, expected)), told
    if log.height:  # a row that is there has come as a row of the plain log, too
        assert set(map(repr, expected)) <= set(map(repr, out.select(columns).rows())), told


ZEROS: dict[str, Any] = {
    "latest": lambda s: s.key_by("k").latest(name="first"),
    "last": lambda s: s.key_by("k").aggregate(md.last("v").alias("v"), name="first"),
    "a key": lambda s: s.key_by("v").aggregate(md.count().alias("n"), name="first"),
    "a key of changes": lambda s: s.key_by("k").latest(name="newest").key_by("v").aggregate(md.count().alias("n"), name="first"),
    "the best of changes": lambda s: s.key_by("k").latest(name="newest").key_by("v").top(2, by="k", name="first"),
    "a left join": lambda s: s.key_by("k").latest(name="newest").join(s.select("v", "k AS q"), on="v", how="left", name="first"),
    "a full join": lambda s: s.key_by("k").latest(name="newest").join(s.select("v", "k AS q"), on="v", how="full", name="first"),
    "a semi join": lambda s: s.key_by("k").latest(name="newest").join(s.select("v", "k AS q"), on="v", how="semi", name="first"),
}


@pytest.mark.many
@pytest.mark.parametrize("values", [[[0.0], [-0.0], [0.0, -0.0], [5.0]], [[-0.0, 1.0], [0.0, -0.0], [-5.0, 0.0], [5.0]]], ids=str)
@pytest.mark.parametrize("name", ZEROS)
def test_what_is_gone_is_what_came_also_where_a_zero_has_another_sign(tmp_path: Path, name: str, values: list[list[float]]) -> None:
    """0.0 equals -0.0, and their texts are two: the row that is gone must be the one that was given out."""
    flow, now, per_text = md.Flow("f"), md.memory(table=True), md.memory(table=True)
    epochs = tuple(((0, tuple(enumerate(some))),) for some in values)
    stream = ZEROS[name](flow.source("in", Script({"k": pl.Int64(), "v": pl.Float64()}, epochs)))
    texts = stream.with_columns(pl.col("v").cast(pl.String).alias("text"), name="texts")
    texts.sink("now_out", now)
    texts.key_by("text").aggregate(md.count().alias("n"), name="per_text").sink("out", per_text)
    Local(flow, tmp_path).run()
    assert now.frame().group_by("text").agg(pl.len().cast(pl.Int64)).sort("text").rows() == per_text.frame().sort("text").rows()
