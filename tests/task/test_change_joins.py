"""Joins whose inputs are streams of changes: at any cut into epochs the result is that of the two tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script, constants
from tests.task.changing import table_of

import meander as md
from meander.task.operators.joins import changes as change_joins
from meander.task.operators.joins import conditions

Row = tuple[Any, ...]
COLUMNS = {"k": pl.Int64(), "g": pl.Int64(), "v": pl.Int64()}
ROWS: list[Row] = [(1, 1, 5), (2, 1, 5), (1, 2, 4), (3, 9, 1), (None, 1, 2), (1, 1, 5), (4, None, 7)]
CUTS = {"one epoch": [7], "an epoch per row": [1] * 7, "some": [2, 3, 2]}


def run(folder: Path, epochs: list[list[Row]], make: Callable[[md.Stream], md.Stream], parallelism: int = 2) -> list[Row]:
    """The log of changes, epoch by epoch."""
    flow, log = md.Flow("f"), md.memory()
    rows = flow.source("in", Script(COLUMNS, tuple(((0, tuple(rows)),) for rows in epochs)))
    make(rows).changes().sink("log_out", log)
    Local(flow, folder, parallelism).run()
    return log.frame().rows()


def cut(name: str) -> list[list[Row]]:
    left, found = list(ROWS), []
    for size in CUTS[name]:
        found.append(left[:size])
        left = left[size:]
    return found


def now(log: list[Row]) -> list[Row]:
    if not log:
        return []
    columns = [*(f"c{number}" for number in range(len(log[0]) - 1)), "change"]
    return sorted(table_of(pl.DataFrame(log, columns, orient="row")).rows(), key=repr)


def totals(rows: md.Stream) -> md.Stream:
    return rows.key_by("k").aggregate(md.sum("v").alias("total"), name="totals")


def groups(rows: md.Stream) -> md.Stream:
    return rows.key_by("g").aggregate(md.count().alias("n"), name="groups").filter("n < 3")


# totals: 1 has 14, 2 has 5, 3 has 1, none has 2, 4 has 7. groups below three rows: 2, 9 and none have one.
JOINED: dict[str, list[Row]] = {
    "inner": [(2, 5, 1)],
    "left": [(1, 14, None), (2, 5, 1), (3, 1, None), (4, 7, None), (None, 2, None)],
    "right": [(2, 5, 1), (9, None, 1), (None, None, 1)],
    "full": [(1, 14, None), (2, 5, 1), (3, 1, None), (4, 7, None), (9, None, 1), (None, 2, None), (None, None, 1)],
    "semi": [(2, 5)],
    "anti": [(1, 14), (3, 1), (4, 7), (None, 2)],
}


@pytest.mark.many
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("how", JOINED)
def test_a_join_of_two_aggregates_is_that_of_their_tables(tmp_path: Path, how: str, name: str, parallelism: int) -> None:
    def make(rows: md.Stream) -> md.Stream:
        return totals(rows).join(groups(rows), left_on="k", right_on="g", how=how, name="joined")

    log = run(tmp_path, cut(name), make, parallelism)
    assert now(log) == sorted(JOINED[how], key=repr)


@pytest.mark.parametrize("name", CUTS)
def test_the_key_of_a_join_need_not_be_that_of_the_aggregate(tmp_path: Path, name: str) -> None:
    """How many keys have a total that is below the number of the group: each total meets every larger group."""

    def make(rows: md.Stream) -> md.Stream:
        one = totals(rows).with_columns(pl.lit(0).alias("one"))
        two = rows.key_by("g").aggregate(md.count().alias("n"), name="groups").with_columns(pl.lit(0).alias("one"))
        return one.join(two, on="one", where="total < g", name="joined").select("k", "total", "g")

    assert now(run(tmp_path, cut(name), make)) == sorted([(2, 5, 9), (3, 1, 2), (3, 1, 9), (4, 7, 9), (None, 2, 9)], key=repr)


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("flipped", [False, True])
def test_one_side_may_be_append_only(tmp_path: Path, flipped: bool, name: str) -> None:
    def make(rows: md.Stream) -> md.Stream:
        one, two = rows.select("k", "g"), totals(rows)
        joined = two.join(one, on="k", name="joined") if flipped else one.join(two, on="k", name="joined")
        return joined.select("k", "g", "total")

    assert now(run(tmp_path, cut(name), make)) == [(1, 1, 14), (1, 1, 14), (1, 2, 14), (2, 1, 5), (3, 9, 1), (4, None, 7)]


def test_what_comes_and_goes_within_an_epoch_is_not_told(tmp_path: Path) -> None:
    def make(rows: md.Stream) -> md.Stream:
        return totals(rows).join(groups(rows), left_on="k", right_on="g", how="left", name="joined")

    log = run(tmp_path, [[(1, 1, 5)], [(1, 7, 3), (1, 8, -3)], [(2, 1, 1)], [(3, 1, 0)]], make)
    assert [row for row in log if row[0] == 1] == [(1, 5, 1, 1), (1, 5, 1, -1), (1, 5, 2, 1), (1, 5, 2, -1), (1, 5, None, 1)]


def test_a_pair_with_a_row_of_nulls_is_what_its_other_row_was_alone(tmp_path: Path) -> None:
    """Nobody needs to hear of it."""

    def make(rows: md.Stream) -> md.Stream:
        most = rows.key_by("g").aggregate(md.max("v").alias("most"), name="most")
        return totals(rows).join(most, left_on="k", right_on="g", how="left", name="joined")

    assert run(tmp_path, [[(1, 2, 5)], [(3, 1, None)]], make) == [(1, 5, None, 1), (3, None, None, 1)]


def test_equal_rows_count_as_often_as_they_are_there(tmp_path: Path) -> None:
    def make(rows: md.Stream) -> md.Stream:
        one = totals(rows).select("total // 10 AS b", name="one")
        two = groups(rows).select("n - 1 AS b", name="two")
        return one.join(two, on="b", name="joined")

    log = run(tmp_path, cut("some"), make)
    assert now(log) == [(0,)] * (4 * 3)


def test_a_plain_sink_gets_what_has_come(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    rows = flow.source("in", Script(COLUMNS, (((0, ((1, 1, 5),)),), ((0, ((1, 1, 2), (1, 3, 0))),))))
    totals(rows).join(groups(rows), left_on="k", right_on="g", how="left", name="joined").sink("out", out)
    Local(flow, tmp_path, 2).run()
    assert out.frame().rows() == [(1, 5, 1), (1, 7, 2)]
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "joined")))
    assert sorted(state.rows(), key=repr) == sorted([("left", 1, 7, None), ("right", 1, None, 2), ("right", 3, None, 1)], key=repr)


def failing(rows: md.Stream) -> md.Stream:
    return totals(rows).join(groups(rows), left_on="k", right_on="g", how="left", where=pl.col("total").cast(pl.Int8) < 9, name="joined")


@pytest.mark.parametrize("how", ["left", "right", "full", "semi", "anti"])
def test_a_row_of_a_hot_key_does_not_cost_all_pairs_of_that_key(tmp_path: Path, how: str) -> None:
    """Whether a row still has a partner is asked until one is found, and of so many pairs at once as there is room for."""
    asked: list[int] = []

    def holds(where: Any, pairs: pl.DataFrame) -> Any:
        asked.append(pairs.height)
        return conditions.holds(where, pairs)

    def joined(rows: md.Stream) -> md.Stream:
        newest = rows.filter("g = 1", name="some").key_by("v").latest(name="newest").select("k", "v AS x")
        return rows.filter("g = 2", name="others").select("k", "v").join(newest, on="k", how=how, where="v + x >= 0", name="joined")

    hot: list[Row] = [(1, number % 2 + 1, number) for number in range(200)]
    with constants(_AT_ONCE=(change_joins, 500), holds=(change_joins, holds)):
        log = run(tmp_path, [hot, [(1, 1, 200)], [(1, 2, 201)]], joined)
    assert len(now(log)) == {"semi": 101, "anti": 0}.get(how, 101 * 101)
    assert asked[0] == 100 * 100
    assert max(asked[1:]) <= 500
    assert sum(asked[1:]) <= 2 * (101 + 500)


FAILS = [[(1, 1, 5)], [(1, 2, 300)], [(1, 3, 1)], [(2, 1, 0)], [(1, 3, -300)]]


def test_a_pair_on_which_the_condition_fails_is_one_dead_letter_and_no_pair(tmp_path: Path) -> None:
    log = run(tmp_path, FAILS, failing)
    assert now(log) == [(1, 6, 2), (2, 0, 1)]
    letters = pl.DataFrame(pl.from_arrow(md.read_dead_letters(tmp_path)))
    assert letters.select("epoch", "operator", "position").rows() == [
        (2, "joined", "joined key 1"), (3, "joined", "joined key 1"), (4, "joined", "joined key 1"),
    ]  # fmt: skip
    assert "Int8" in letters["reason"][0] or "i8" in letters["reason"][0]


def test_a_dead_letter_of_a_pair_has_times_that_python_lacks_as_numbers(tmp_path: Path) -> None:
    flow, log = md.Flow("f"), md.memory()
    columns = {"k": pl.Int64(), "word": pl.String(), "ts": pl.Datetime("us")}
    rows = flow.source("in", Script(columns, (((0, ((1, "one", 1 << 60), (2, "2", 1 << 60))),),)))
    newest = rows.key_by("k").latest(name="newest")
    counts = rows.key_by("k").aggregate(md.count().alias("n"), name="counts")
    newest.join(counts, on="k", where="CAST(word AS INT) > n", name="joined").changes().sink("log_out", log)
    Local(flow, tmp_path).run()
    assert log.frame().select("k", "word", "change").rows() == [(2, "2", 1)]
    (letter,) = md.read_dead_letters(tmp_path).to_pylist()
    assert json.loads(letter["content"]) == {"k": 1, "word": "one", "ts": 1 << 60, "n": 1}


def test_in_a_strict_flow_it_stops(tmp_path: Path) -> None:
    flow = md.Flow("f")
    rows = flow.source("in", Script(COLUMNS, tuple(((0, tuple(some)),) for some in FAILS)))
    failing(rows).changes().sink("out", md.memory())
    with pytest.raises(md.BadInput, match="operator 'joined', epoch 2, a pair of key 1: where"):
        Local(flow, tmp_path, 2, strict=True).run()


@pytest.mark.many
@pytest.mark.parametrize("how", ["inner", "full", "anti"])
@pytest.mark.parametrize(
    "dtype",
    [pl.Enum(["5", "4", "1", "2", "7"]), pl.Categorical(), pl.Decimal(38, 2), pl.Binary(), pl.Float32(), pl.UInt64(), pl.Duration("ms")],
    ids=str,
)
def test_rows_of_any_flat_type_come_and_go(tmp_path: Path, dtype: pl.DataType, how: str) -> None:
    typed = pl.col("v").cast(pl.String).cast(dtype) if dtype in (pl.Enum, pl.Categorical, pl.Binary) else pl.col("v").cast(dtype)

    def joined(rows: md.Stream) -> md.Stream:
        rows = rows.with_columns(typed, name="typed")
        newest = rows.key_by("g").latest(name="newest").select("g", "v AS x")
        return rows.select("g", "v").join(newest, on="g", how=how, name="joined")

    found = [now(run(tmp_path / name, cut(name), joined)) for name in CUTS]
    assert found[0] == found[1] == found[2] != []
