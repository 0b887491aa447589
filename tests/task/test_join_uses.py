"""What joins are used for, and what stands around them: windows behind them, tables, limits, names, mistakes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script
from tests.task.test_joins import LEFT, SECOND, micros, ordered, sources

import meander as md
from meander.errors import BadInput, FlowError
from meander.plan.eventtime import time_of

Rows = tuple[tuple[Any, ...], ...]


def one(left: Rows, right: Rows) -> tuple[Any, Any]:
    """An epoch; times are in seconds."""
    return tuple(((0, tuple((*row[:-1], int(row[-1] * SECOND)) for row in rows)),) for rows in (left, right))  # type: ignore[return-value]


def alone(flow: md.Flow, epochs: Sequence[Rows], grace: int = 0) -> md.Stream:
    """Only the left side, one tuple of rows per epoch."""
    return flow.source("left", Script(LEFT, tuple(one(rows, ())[0] for rows in epochs))).watermark("ts", grace=grace, name="left_time")


@pytest.mark.many
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("time", [None, "joined_at"])
def test_windows_behind_a_join_lose_nothing(tmp_path: Path, how: str, time: str | None) -> None:
    """Pairs come up to 5 s behind the left row, rows that are alone later still: what follows waits for them."""
    script = [one(((n % 3, n, n),), ((n % 5, n, n + 4.5),)) for n in range(60)]
    flow, pairs, windows = md.Flow("joins"), md.memory(), md.memory()
    left, right = sources(flow, script, 1)
    if how in ("semi", "anti") and time is not None:
        return
    where = "v % 2 = 0" if how in ("semi", "anti") else None
    joined = left.join(right, on="k", within=("-1s", "5s"), how=how, where=where, time=time, name="j")
    joined.sink("pairs", pairs)
    if how == "full" and time is None:
        with pytest.raises(FlowError, match="no event time"):
            joined.window(md.tumbling("2s")).aggregate(md.count())
        return
    joined.window(md.tumbling("2s")).aggregate(md.count().alias("n"), name="w").sink("windows", windows)
    local = Local(flow, tmp_path)
    local.run(flush=True)
    found = pl.DataFrame(pl.from_arrow(windows.table()))
    assert found.get_column("n").sum() == pairs.table().num_rows > 0
    assert found.get_column("window_start").is_unique().all()
    assert local.manifest.totals.get("late_rows", 0) == 0


def test_the_time_behind_a_join(tmp_path: Path) -> None:
    flow = md.Flow("joins")
    left, right = sources(flow, [], 0)

    def time(stream: md.Stream) -> Any:
        found = time_of(tuple(flow._nodes.values()), flow._schemas, stream.name)
        return None if found is None else (found.column, found.delay / SECOND)

    assert time(left.join(right, on="k", within=("-3s", "5s"))) == ("ts", 5.0)
    assert time(left.join(right, on="k", within=("-3s", "5s"), how="left")) == ("ts", 5.0)
    assert time(left.join(right, on="k", within=("-3s", "5s"), how="right")) == ("ts_right", 3.0)
    assert time(left.join(right, on="k", within=("-3s", "5s"), how="full")) is None
    assert time(left.join(right, on="k", within=("-3s", "5s"), how="full", time="t")) == ("t", 5.0)
    assert time(left.join(right, on="k", within=("-3s", "5s"), time="t")) == ("t", 0.0)
    assert time(left.join(right, on="k", within=("-3s", "5s"), how="semi")) == ("ts", 5.0)
    assert time(left.join(right, on="k", within=("-3s", "5s"), how="anti")) == ("ts", 5.0)
    assert time(left.join(right, on="k", within=("-5s", "-3s"), how="semi")) == ("ts", 0.0)
    assert time(left.join(right, on="k", how="semi")) is None
    assert time(left.join(right, on="k")) is None
    assert time(left.join(right, on="k", time="t")) == ("t", 0.0)
    assert time(left.window(md.tumbling("10s")).join(right, on="k")) == ("window_end", 0.0)
    assert time(left.join_latest(right, on="k")) == ("ts", 0.0)
    assert time(left.join_latest(right, on="k", as_of=True)) == ("ts", 0.0)


def test_a_bound_in_the_row_is_a_condition_below_the_largest(tmp_path: Path) -> None:
    """Bids between the beginning and the end of their auction, and the best of each when no more can come."""
    auctions = {"id": pl.Int64(), "expires": pl.Datetime("us"), "ts": pl.Datetime("us")}
    bids = {"auction": pl.Int64(), "price": pl.Int64(), "ts": pl.Datetime("us")}
    opened = tuple((n, (2 * n + 1 + n % 3) * SECOND, (2 * n) * SECOND) for n in range(20))
    offers = tuple((n, 10 * n + at, int((2 * n + at / 2 - 1) * SECOND)) for n in range(20) for at in range(10))
    flow, won = md.Flow("auctions"), md.memory()
    epochs = [opened[at : at + 4] for at in range(0, 20, 4)]
    left = flow.source("auctions", Script(auctions, tuple(((0, rows),) for rows in epochs))).watermark("ts", grace="10s")
    by_epoch = tuple(((0, offers[at : at + 40]),) for at in range(0, 200, 40))
    right = flow.source("bids", Script(bids, by_epoch)).watermark("ts", grace="10s")
    offered = left.join(right, left_on="id", right_on="auction", within=("0s", "3s"), where="ts_right <= expires", name="j")
    assert offered.schema.names() == ["id", "expires", "ts", "price", "ts_right"]
    offered.key_by("id").window(md.tumbling("1s")).aggregate(md.max("price").alias("price"), name="best").sink("won", won)
    Local(flow, tmp_path).run(flush=True)
    expected = {}
    for n, expires, begins in opened:
        prices = [price for auction, price, ts in offers if auction == n and begins <= ts <= expires]
        expected[n] = max(prices)
    found = pl.DataFrame(pl.from_arrow(won.table()))
    assert sorted(found.select("id", "price").rows()) == sorted(expected.items())


@pytest.mark.parametrize("small", [True, False])
def test_windows_are_joined_with_what_comes_out_of_windows(tmp_path: Path, small: bool) -> None:
    """The largest of every window, and the rows that have it: one input is a stage further than the other."""
    rows = [tuple((n % 4, (n + m) * 7 % 10, n + 0.1 * m) for m in range(3)) for n in range(0, 40, 2)]
    flow, out = md.Flow("largest"), md.memory()
    left = alone(flow, rows, 1)
    window = left.window(md.tumbling("10s"))
    best = window.aggregate(md.max("v").alias("best"), name="best")
    window.join(best, left_on="v", right_on="best", name="j").sink("out", out)
    local = Local(flow, tmp_path, small=small)
    local.run(flush=True)
    largest: dict[int, int] = {}
    for _, v, ts in (row for some in rows for row in some):
        largest[int(ts) // 10] = max(v, largest.get(int(ts) // 10, 0))
    expected = [(v, round(ts * SECOND)) for some in rows for _, v, ts in some if v == largest[int(ts) // 10]]
    assert ordered(micros(out.table(), "v", "ts")) == ordered(expected)
    found = pl.DataFrame(pl.from_arrow(out.table()))
    assert (found.get_column("window_end") == found.get_column("window_end_right")).all()
    assert local.manifest.totals.get("late_rows", 0) == 0


def test_a_stream_is_joined_with_itself(tmp_path: Path) -> None:
    flow, out = md.Flow("self"), md.memory()
    left = alone(flow, [((1, n, n), (2, n, n)) for n in range(10)])
    left.join(left, on="k", within=("1s", "1s"), name="j").sink("out", out)
    Local(flow, tmp_path).run()
    assert ordered(micros(out.table(), "k", "v", "v_right")) == [(k, n, n + 1) for k in (1, 2) for n in range(9)]


@pytest.mark.many
def test_an_inner_join_keeps_what_can_meet_something_and_no_more(tmp_path: Path) -> None:
    script = [one(tuple((k, n, n) for k in range(20)), tuple((k, n, n + 1) for k in range(20))) for n in range(0, 200, 2)]
    flow, out = md.Flow("flat"), md.memory()
    left, right = sources(flow, script, 2)
    left.join(right, on="k", within=("0s", "1s"), name="j").sink("out", out)
    local = Local(flow, tmp_path)
    most = 0
    while local.step():
        most = max(most, sum(table.rows for table in local.manifest.tables.values()))
    assert out.table().num_rows == 100 * 20
    assert most <= 2 * 20 * 8  # of a hundred epochs, those of a bucket and of the grace
    assert md.read_state(tmp_path, "j").num_rows <= most


def test_what_waits_can_be_read(tmp_path: Path) -> None:
    flow = md.Flow("wait")
    left, right = sources(flow, [one(((1, 10, 1),), ((2, 20, 2),))], 0)
    left.join(right, on="k", within="10s", how="full", name="j").sink("out", md.memory())
    left.join_latest(right, on="k", name="l").sink("out2", md.memory())
    Local(flow, tmp_path).run()
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "j")))
    assert state.select("__side", "k", "v", "w").rows() == [("left", 1, 10, None), ("right", 2, None, 20)]
    assert pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "l"))).select("k", "w").rows() == [(2, 20)]


def test_late_rows_are_dead_letters_where_nobody_takes_them(tmp_path: Path) -> None:
    script = [one(((1, 1, 50),), ((1, 1, 50),)), one((), ()), one(((1, 2, 3),), ((1, 3, 51),))]
    flow, out = md.Flow("late"), md.memory()
    left, right = sources(flow, script, 0)
    left.join(right, on="k", within="10s", how="left", name="j").sink("out", out)
    local = Local(flow, tmp_path)
    local.run(flush=True)
    letters = pl.concat([pl.read_parquet(path) for path in (tmp_path / "dead_letters").glob("*.parquet")])
    assert letters.select("operator", "reason").rows() == [("j", "late: its time is behind the watermark")]
    assert local.manifest.totals["late_rows"] == 1
    assert out.table().num_rows == 2


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_can_have_different_types(tmp_path: Path, unit: Any) -> None:
    factor = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    flow, out = md.Flow("types"), md.memory()
    left = flow.source("l", Script({"k": pl.String(), "t": pl.Datetime(unit)}, (((0, (("a", 5 * factor),)),),))).watermark("t")
    right = flow.source("r", Script({"j": pl.String(), "u": pl.Datetime("us", "UTC")}, (((0, (("a", 9 * SECOND),)),),))).watermark("u")
    left.join(right, left_on="k", right_on="j", within=("0s", "4s"), name="j").sink("out", out)
    Local(flow, tmp_path).run()
    assert out.table().num_rows == 1
    assert out.table().column_names == ["k", "t", "u"]
    with pytest.raises(FlowError, match="become one column"):
        left.join(right, left_on="k", right_on="j", within="1s", time="both")


# -- tables ----------------------------------------------------------------------------------------------------------

CITIES = pl.DataFrame({"k": [1, 2, 2], "city": ["Rome", "Oslo", "Bern"]})


def looked_up(tmp_path: Path, table: Any, how: str, behind_state: bool = False) -> list[tuple[Any, ...]]:
    flow, out = md.Flow("static"), md.memory()
    left = alone(flow, [((1, 10, 1), (2, 20, 2)), ((3, 30, 3), (None, 40, 4))])
    if behind_state:
        left = left.key_by("k").aggregate(md.sum("v").alias("v"), name="sums")
    left.join_static(table, on="k", how=how, name="cities").sink("out", out)
    Local(flow, tmp_path / "state").run()
    return ordered(micros(out.table(), "k", "v", *(["city"] if how in ("inner", "left") else [])))


@pytest.mark.parametrize("behind_state", [False, True])
def test_rows_are_looked_up_in_a_table(tmp_path: Path, behind_state: bool) -> None:
    inner: list[tuple[Any, ...]] = [(1, 10, "Rome"), (2, 20, "Bern"), (2, 20, "Oslo")]
    assert looked_up(tmp_path / "a", CITIES, "inner", behind_state) == inner
    assert looked_up(tmp_path / "b", CITIES, "left", behind_state) == ordered([*inner, (3, 30, None), (None, 40, None)])
    assert looked_up(tmp_path / "c", CITIES, "semi", behind_state) == [(1, 10), (2, 20)]
    assert looked_up(tmp_path / "d", CITIES, "anti", behind_state) == [(None, 40), (3, 30)]


def test_a_table_can_be_a_file_or_what_a_function_returns(tmp_path: Path) -> None:
    CITIES.write_parquet(tmp_path / "cities.parquet")
    CITIES.write_csv(tmp_path / "cities.csv")
    expected = looked_up(tmp_path / "a", CITIES, "inner")
    assert looked_up(tmp_path / "b", tmp_path / "cities.parquet", "inner") == expected
    assert looked_up(tmp_path / "c", str(tmp_path / "cities.csv"), "inner") == expected
    assert looked_up(tmp_path / "d", lambda: CITIES, "inner") == expected


def test_a_file_that_changes_under_a_running_flow_is_an_error(tmp_path: Path) -> None:
    CITIES.write_csv(tmp_path / "cities.csv")
    flow = md.Flow("static")
    left = alone(flow, [])
    left.join_static(tmp_path / "cities.csv", on="k", name="cities").sink("out", md.memory())
    lookup = flow._nodes["cities"].op.lookup  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(lookup)).table().equals(CITIES)
    CITIES[:1].write_csv(tmp_path / "cities.csv")
    with pytest.raises(BadInput, match="has changed since the flow was written"):
        pickle.loads(pickle.dumps(lookup)).table()


def test_a_frame_is_a_part_of_the_flow_and_a_file_is_not(tmp_path: Path) -> None:
    def digest(table: Any) -> str:
        flow = md.Flow("static")
        left = alone(flow, [])
        left.join_static(table, on="k", name="cities").sink("out", md.memory())
        return flow.plan().digest()

    assert digest(CITIES) == digest(CITIES.clone())
    assert digest(CITIES) != digest(CITIES[:2])
    CITIES.write_csv(tmp_path / "a.csv")
    CITIES[:1].write_csv(tmp_path / "b.csv")
    assert digest(tmp_path / "a.csv") == digest(tmp_path / "b.csv")


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_are_named_where_they_are_made(tmp_path: Path) -> None:
    flow = md.Flow("mistakes")
    left: Any
    left, right = sources(flow, [], 0)
    timeless = flow.source("timeless", Script({"k": pl.Int64(), "x": pl.String()}, ()))
    other = alone(md.Flow("other"), [])
    wrong: list[tuple[Any, str]] = [
        (lambda: left.join(right), "which columns must be equal"),
        (lambda: left.join(right, on="k", left_on="k", right_on="k"), "which columns must be equal"),
        (lambda: left.join(right, left_on="k"), "which columns must be equal"),
        (lambda: left.join(right, on="kk", within="1s"), "left side: there is no column 'kk'"),
        (lambda: left.join(right, left_on=["k", "v"], right_on="k", within="1s"), "as many key columns"),
        (lambda: left.join(timeless, left_on="k", right_on="x"), "cast one of them"),
        (lambda: left.join(timeless, on="k", within="1s"), "no event time"),
        (lambda: left.join(timeless, on="k", how="left"), "needs within"),
        (lambda: left.join(right, on="k", within="1s", how="outer"), "there are inner, left, right, full"),
        (lambda: left.join(right, on="k", within="soon"), "not a duration"),
        (lambda: left.join(right, on="k", within=("5s", "1s")), "nothing can match"),
        (lambda: left.join(right, on="k", within=("5s",)), "give one duration, or two"),
        (lambda: left.join(right, on="k", within="1s", where="x > 1"), "there is no column 'x'"),
        (lambda: left.join(right, on="k", within="1s", where="v + w"), "not one Boolean"),
        (lambda: left.join(right, on="k", within="1s", time="v"), "the join's own"),
        (lambda: left.join(right, on="k", within="1s", suffix=""), "two columns would be named 'ts'"),
        (lambda: left.join(CITIES, on="k"), "join_static"),
        (lambda: left.join(other, on="k"), "belongs to another flow"),
        (lambda: left.join(right, on=[1], within="1s"), "no names of columns"),
        (lambda: left.window(md.session("v")).join(right, on="k"), "needs one for all rows of both sides"),
        (lambda: left.window(md.tumbling("10s")).join(right), "which columns must be equal"),
        (lambda: left.join_latest(right, on="k", how="full"), "there are inner and left"),
        (lambda: left.join_latest(timeless, on="k", as_of=True), "no event time"),
        (lambda: left.join_latest(right, on="k", tolerance="1s"), "give as_of=True, too"),
        (lambda: left.join_latest(right, on="k", as_of=True, tolerance="-1s"), "not a duration"),
        (lambda: left.join(right, on="k").late(), "has late rows"),
        (lambda: left.join_static(CITIES, on="k", how="full"), "there are inner, left, semi, anti"),
        (lambda: left.join_static(7, on="k"), "is no table"),
        (lambda: left.join_static("cities.txt", on="k"), "neither in .parquet nor in .csv"),
        (lambda: left.join_static(tmp_path / "none.csv", on="k"), "cannot be read"),
        (lambda: left.join_static(lambda: None, on="k"), "must return a polars DataFrame"),
        (lambda: left.join_static(CITIES, on="city"), "there is no column 'city'"),
    ]
    for number, (call, message) in enumerate(wrong):
        with pytest.raises(FlowError, match=message.replace("(", r"\(")):
            print(number, call())


def test_a_plan_says_what_is_joined_and_how() -> None:
    flow = md.Flow("explained")
    left, right = sources(flow, [], 0)
    left.join(right, on="k", within=("-5s", "10s"), how="left", where="v > w", name="j").sink("out", md.memory())
    left.key_by("k").window(md.tumbling("10s")).join(right, name="w").sink("out2", md.memory())
    left.join_latest(right, on="k", as_of=True, tolerance="1m", name="l").sink("out3", md.memory())
    text = flow.explain()
    assert "join j <- left_time, right_time: left on k, from -5s to 10s, where v > w" in text
    assert "join_latest l <- left_time, right_time: inner on k, the last up to ts, by ts, at most 1m older" in text
    assert "join w <- left_time, right_time: inner on k, in the same tumbling(10s)" in text
