"""Aggregates: rows cut into any pieces, initialised and merged in order, give what one look at all rows gives."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander import aggregates as md
from meander.aggregates import Agg, Aggregator, as_agg
from meander.errors import FlowError

SCHEMA = pl.Schema({"k": pl.Int64(), "i": pl.Int32(), "u": pl.UInt16(), "f": pl.Float64(), "s": pl.String(), "d": pl.Duration("ms")})

Row = tuple[int, int | None, int | None, float | None, str | None, int | None]


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        optional(st.integers(-1000, 1000)),
        optional(st.integers(0, 1000)),
        optional(st.floats(-1e6, 1e6, allow_nan=False)),
        optional(st.sampled_from(["", "a", "b", "ä", "zz"])),
        optional(st.integers(-10_000, 10_000)),
    ),
    min_size=1,
    max_size=40,
)


def frame_of(given_rows: list[Row]) -> pl.DataFrame:
    columns = list(zip(*given_rows, strict=True))
    return pl.DataFrame([pl.Series(name, column, dtype=dtype) for (name, dtype), column in zip(SCHEMA.items(), columns, strict=True)])


def init(agg: Agg, frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    parts = agg.parts(schema)
    return frame.group_by("k", maintain_order=True).agg(part.init.alias(f"{agg.name}.{label}") for label, part in parts.items())


def merge(agg: Agg, states: list[pl.DataFrame], schema: pl.Schema) -> pl.DataFrame:
    parts = agg.parts(schema)
    return (
        pl.concat(states).group_by("k", maintain_order=True).agg(part.merge.alias(f"{agg.name}.{label}") for label, part in parts.items())
    )


def check_dtypes(agg: Agg, state: pl.DataFrame, schema: pl.Schema) -> None:
    assert {name: dtype for name, dtype in state.schema.items() if name != "k"} == {
        f"{agg.name}.{p}": part.dtype for p, part in agg.parts(schema).items()
    }


def value_of(agg: Agg, state: pl.DataFrame, schema: pl.Schema) -> dict[Any, Any]:
    if agg.keeps:  # the values are rows of a table of their own, which the key's row only counts
        state = state.with_columns(pl.col(f"{agg.name}.values").list.len().cast(pl.Int64).alias(f"{agg.name}.n"))
    finished = state.select("k", agg.finish())
    assert finished.schema[agg.name] == agg.output(schema)
    return dict(finished.rows())


def in_pieces(agg: Agg, frame: pl.DataFrame, cuts: list[int], nested: bool) -> pl.DataFrame:
    schema = frame.schema
    bounds = [0, *sorted(cut % (frame.height + 1) for cut in cuts), frame.height]
    states = [init(agg, frame[a:b], schema) for a, b in pairwise(bounds)]
    for state in states:
        check_dtypes(agg, state, schema)
    if nested:
        folded = states[0]
        for state in states[1:]:
            folded = merge(agg, [folded, state], schema)
        return folded
    return merge(agg, states, schema)


def values(group: pl.DataFrame, column: str) -> list[Any]:
    return [value for value in group[column].to_list() if value is not None]


Oracle = Callable[[pl.DataFrame], Any]
CASES: list[tuple[Agg, Oracle]] = [
    (md.count(), lambda g: g.height),
    (md.count("s"), lambda g: len(values(g, "s"))),
    (md.sum("i"), lambda g: sum(values(g, "i")) if values(g, "i") else None),
    (md.sum("u"), lambda g: sum(values(g, "u")) if values(g, "u") else None),
    (md.sum("f"), lambda g: sum(values(g, "f")) if values(g, "f") else None),
    (md.sum("d"), lambda g: g["d"].sum() if values(g, "d") else None),
    (md.min("i"), lambda g: min(values(g, "i"), default=None)),
    (md.max("f"), lambda g: max(values(g, "f"), default=None)),
    (md.min("s"), lambda g: min(values(g, "s"), default=None)),
    (md.max("s"), lambda g: max(values(g, "s"), default=None)),
    (md.max("d"), lambda g: max(values(g, "d"), default=None)),
    (md.mean("i"), lambda g: statistics.fmean(values(g, "i")) if values(g, "i") else None),
    (md.mean("f"), lambda g: statistics.fmean(values(g, "f")) if values(g, "f") else None),
    (md.var("f"), lambda g: statistics.variance(values(g, "f")) if len(values(g, "f")) > 1 else None),
    (md.std("i"), lambda g: statistics.stdev(values(g, "i")) if len(values(g, "i")) > 1 else None),
    (md.first("s"), lambda g: next(iter(values(g, "s")), None)),
    (md.last("f"), lambda g: next(iter(reversed(values(g, "f"))), None)),
    (md.count_distinct("i"), lambda g: len(set(values(g, "i")))),
    (md.count_distinct("s"), lambda g: len(set(values(g, "s")))),
    (md.count_distinct("s", approximate=True), lambda g: len(set(values(g, "s")))),
    (md.top_k("f", 3), lambda g: sorted(values(g, "f"), reverse=True)[:3]),
    (md.top_k("s", 2), lambda g: sorted(values(g, "s"), reverse=True)[:2]),
    (md.collect("i"), lambda g: values(g, "i")),
]


def same(got: Any, expected: Any) -> bool:
    if isinstance(got, float) and isinstance(expected, (int, float)):
        return math.isclose(got, expected, rel_tol=1e-6, abs_tol=1e-6)
    return bool(got == expected)


@pytest.mark.many
@pytest.mark.parametrize(("agg", "oracle"), CASES, ids=lambda case: case.describe() if isinstance(case, Agg) else "")
@settings(max_examples=25, deadline=None)
@given(given_rows=rows, cuts=st.lists(st.integers(0, 100), max_size=4), nested=st.booleans())
def test_pieces_merged_in_order_give_what_all_rows_give(
    agg: Agg, oracle: Oracle, given_rows: list[Row], cuts: list[int], nested: bool
) -> None:
    frame = frame_of(given_rows)
    got = value_of(agg, in_pieces(agg, frame, cuts, nested), frame.schema)
    expected = {key: oracle(frame.filter(pl.col("k") == key)) for key in frame["k"].unique()}
    assert got.keys() == expected.keys()
    for key in expected:
        assert same(got[key], expected[key]), f"key {key}: {got[key]} instead of {expected[key]}"


@settings(max_examples=40, deadline=None)
@given(given_rows=rows, cuts=st.lists(st.integers(0, 100), max_size=4), q=st.sampled_from([0.0, 0.01, 0.5, 0.9, 1.0]))
def test_a_quantile_is_within_one_percent_of_the_value_at_its_rank(given_rows: list[Row], cuts: list[int], q: float) -> None:
    frame = frame_of(given_rows)
    agg = md.quantile("f", q)
    got = value_of(agg, in_pieces(agg, frame, cuts, nested=True), frame.schema)
    for key, value in got.items():
        ordered = sorted(values(frame.filter(pl.col("k") == key), "f"))
        if not ordered:
            assert value is None
            continue
        exact = ordered[math.floor(q * (len(ordered) - 1))]
        assert value == pytest.approx(exact, rel=0.0101, abs=0)


@pytest.mark.parametrize("agg", [md.quantile("f", 0.5), md.count_distinct("f", approximate=True), md.count_distinct("f"), md.top_k("f", 3)])
@settings(max_examples=25, deadline=None)
@given(given_rows=rows, cuts=st.lists(st.integers(0, 100), max_size=4))
def test_bounded_states_are_equal_bit_for_bit_whatever_the_pieces(agg: Agg, given_rows: list[Row], cuts: list[int]) -> None:
    frame = frame_of(given_rows)
    flat, nested = in_pieces(agg, frame, cuts, False), in_pieces(agg, frame, cuts, True)
    assert flat.equals(nested)
    assert flat.equals(merge(agg, [init(agg, frame, frame.schema)], frame.schema))


@settings(max_examples=25, deadline=None)
@given(given_rows=rows)
def test_merging_one_state_alone_gives_it_back_bit_for_bit(given_rows: list[Row]) -> None:
    frame = frame_of(given_rows)
    for agg, _ in CASES:
        state = init(agg, frame, frame.schema)
        assert merge(agg, [state], frame.schema).equals(state), agg.describe()


@settings(max_examples=25, deadline=None)
@given(given_rows=rows)
def test_where_a_lift_is_given_folding_it_is_what_init_does(given_rows: list[Row]) -> None:
    frame = frame_of(given_rows)
    folds: dict[str, Callable[[pl.Expr], pl.Expr]] = {
        "sum": lambda c: pl.when(c.count() > 0).then(c.sum()),
        "min": pl.Expr.min,
        "max": pl.Expr.max,
        "first": lambda c: c.drop_nulls().first(),
        "last": lambda c: c.drop_nulls().last(),
    }
    for agg, _ in CASES:
        for label, part in agg.parts(frame.schema).items():
            if part.lift is None:
                continue
            assert part.fold is not None
            how, column = part.lift
            if column is None:
                lifted = pl.lit(1, pl.Int64)
            else:
                lifted = pl.col(column).is_not_null().cast(pl.Int64) if how == "valid" else pl.col(column).cast(part.dtype)
            fast = frame.with_columns(lifted.alias("x")).group_by("k", maintain_order=True).agg(folds[part.fold](pl.col("x")))
            slow = frame.group_by("k", maintain_order=True).agg(part.init.alias("x"))
            assert fast.equals(slow), f"{agg.describe()}.{label}"


def test_an_approximate_count_of_many_values_is_within_ten_percent() -> None:
    frame = pl.DataFrame({"k": 0, "v": np.arange(50_000)})
    agg = md.count_distinct("v", approximate=True)
    state = in_pieces(agg, frame, [10_000, 30_000], nested=False)
    assert state.select(pl.col(f"{agg.name}.hashes").list.len()).item() == 1024
    assert value_of(agg, state, frame.schema)[0] == pytest.approx(50_000, rel=0.1)


def test_quantiles_of_a_large_column_hold_their_accuracy_in_few_buckets() -> None:
    values_ = np.concatenate([np.linspace(-1e3, 1e9, 20_000), [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308]])
    frame = pl.DataFrame({"k": 0, "v": values_})
    exact = np.sort(values_[~np.isnan(values_)])
    for q in (0.0, 0.001, 0.25, 0.5, 0.99, 1.0):
        agg = md.quantile("v", q)
        state = in_pieces(agg, frame, [7_000], nested=False)
        got = value_of(agg, state, frame.schema)[0]
        assert got == pytest.approx(exact[math.floor(q * (len(exact) - 1))], rel=0.0101)
        assert state.select(pl.col(f"{agg.name}.buckets").list.len()).item() < 3_000


@pytest.mark.parametrize("fold", [md.min, md.max])
def test_nan_is_the_extreme_only_of_nans_also_after_a_merge(fold: Callable[[str], Agg]) -> None:
    agg = fold("v")
    frame = pl.DataFrame({"k": [1, 1, 2], "v": [math.nan, 1.0, math.nan]})
    got = value_of(agg, in_pieces(agg, frame, [1], nested=True), frame.schema)
    assert got[1] == 1.0
    assert math.isnan(got[2])


TYPES = {
    "f32": pl.Series([1.5, 2.5, None], dtype=pl.Float32),
    "decimal": pl.Series([Decimal("1.10"), Decimal("2.20"), None]),
    "flag": pl.Series([True, False, None]),
    "date": pl.Series([dt.date(2020, 1, 1), dt.date(2020, 1, 2), None]),
    "stamp": pl.Series([dt.datetime(2020, 1, 1)] * 3),
    "time": pl.Series([dt.time(1), dt.time(2), None]),
    "span": pl.Series([dt.timedelta(1)] * 3),
    "binary": pl.Series([b"a", b"b", None]),
    "i8": pl.Series([127, 127, None], dtype=pl.Int8),
    "u64": pl.Series([2**63, 1, None], dtype=pl.UInt64),
    "struct": pl.Series([{"x": 1}, {"x": 2}, None]),
    "list": pl.Series([[1], [2], None]),
    "enum": pl.Series(["a", "b", None], dtype=pl.Enum(["a", "b"])),
    "nothing": pl.Series([None] * 3),
}
EVERY: list[Callable[[str], Agg]] = [
    md.count, md.sum, md.min, md.max, md.mean, md.var, md.std, md.first, md.last, md.count_distinct, md.collect,
    lambda c: md.count_distinct(c, approximate=True), lambda c: md.quantile(c, 0.5), lambda c: md.top_k(c, 2),
]  # fmt: skip


def refusal(agg: Agg, schema: pl.Schema) -> str | None:
    try:
        agg.parts(schema)
    except FlowError as error:
        return str(error)
    return None


@pytest.mark.parametrize("column", TYPES)
def test_every_type_is_aggregated_as_declared_or_refused_by_name(column: str) -> None:
    frame = pl.DataFrame({"k": [1, 1, 2], column: TYPES[column]})
    for make in EVERY:
        agg = make(column)
        refused = refusal(agg, frame.schema)
        if refused is not None:
            assert f"column {column!r} is" in refused
            continue
        state = in_pieces(agg, frame, [1, 2], nested=False)
        check_dtypes(agg, state, frame.schema)
        value_of(agg, state, frame.schema)


class GeoMean(Aggregator):
    def init(self) -> dict[str, pl.Expr]:
        x = pl.col(self.inputs[0]).log()
        return {"n": x.count().cast(pl.Int64), "logs": x.sum()}

    def merge(self) -> dict[str, pl.Expr]:
        return {"n": self.state("n").sum(), "logs": self.state("logs").sum()}

    def finish(self) -> pl.Expr:
        return (self.state("logs") / self.state("n")).exp()


def test_a_users_aggregator_works_like_a_built_in_one() -> None:
    agg = as_agg(GeoMean("price").alias("g"))
    frame = pl.DataFrame({"k": [1, 1, 2, 1], "price": [1.0, 10.0, 7.0, 100.0]})
    assert agg.name == "g"
    assert agg.inputs() == ("price",)
    got = value_of(agg, in_pieces(agg, frame, [2], nested=True), frame.schema)
    assert got == pytest.approx({1: 10.0, 2: 7.0})


def test_a_users_aggregator_that_contradicts_itself_is_refused_with_what_to_do() -> None:
    class Widens(GeoMean):
        def merge(self) -> dict[str, pl.Expr]:
            return {"n": self.state("n").sum().cast(pl.Float64), "logs": self.state("logs").sum()}

    class Forgets(GeoMean):
        def merge(self) -> dict[str, pl.Expr]:
            return {"n": self.state("n").sum()}

    class Peeks(GeoMean):
        def init(self) -> dict[str, pl.Expr]:
            return {"n": pl.col("k").count().cast(pl.Int64), "logs": pl.col("price").sum()}

    schema = pl.Schema({"k": pl.Int64(), "price": pl.Float64()})
    for aggregator, words in [
        (Widens("price"), "part 'n' is Int64 after init() and Float64 after merge(); cast one of them"),
        (Forgets("price"), "init() gives the parts ['logs', 'n'] and merge() ['n']"),
        (Peeks("price"), "init() reads ['k'], which inputs ('price',) does not name"),
        (GeoMean("prise"), "there is no column 'prise'"),
    ]:
        with pytest.raises(FlowError) as caught:
            as_agg(aggregator).parts(schema)
        assert words in str(caught.value)
        assert type(aggregator).__name__ in str(caught.value)


def test_names_default_to_function_and_column_and_alias_makes_a_copy() -> None:
    assert [agg.name for agg in (md.count(), md.sum("i"), md.min("i"), md.std("f"), md.top_k("f", 2))] == [
        "count", "sum_i", "min_i", "std_f", "top_k_f",
    ]  # fmt: skip
    total = md.sum("i")
    assert total.alias("t").name == "t"
    assert total.name == "sum_i"
