"""What a user writes: the flow checks itself line by line, and says what is wrong in the user's words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

from meander import aggregates as md
from meander.connect.discard import discard
from meander.connect.files import files
from meander.connect.partitioned import parquet
from meander.errors import FlowError
from meander.flow import Flow, Stream
from meander.plan import unplaced as free
from meander.plan.operators import MapBatches
from meander.settings import Settings


def orders() -> Stream:
    return Flow("f").source("orders", rows())


FRAME = pl.DataFrame(
    {"customer": ["a", "b", None], "amount": [1.0, -2.0, None], "ts": [None, None, None]}, schema=rows().schema()
)  # fmt: skip


def test_the_flow_of_the_readme_has_the_columns_it_promises() -> None:
    totals = (
        orders()
        .filter("amount > 0", name="positive")
        .with_columns((pl.col("amount") * 100).alias("cents"), name="to_cents")
        .map_batches(lambda frame: frame.with_columns(pl.lit(1).alias("one")), name="enrich")
        .key_by("customer")
        .aggregate(md.count().alias("n"), md.sum("amount").alias("total"), name="totals")
    )
    flow = totals.sink("out", Nowhere())
    assert totals.schema == pl.Schema({"customer": pl.String(), "n": pl.Int64(), "total": pl.Float64()})
    assert [node.name for node in flow.plan().nodes] == ["orders", "positive", "to_cents", "enrich", "totals", "out"]
    assert flow.plan().version == 1


def test_unnamed_operators_are_numbered_per_kind_in_the_order_written() -> None:
    stream = orders().filter("amount > 0").filter("amount > 1").select("amount").filter("amount > 2")
    assert list(stream.flow._nodes) == ["orders", "filter_1", "filter_2", "select_1", "filter_3"]


def test_a_flow_may_have_several_sources_and_sinks_and_use_a_stream_twice() -> None:
    flow = Flow("f")
    both = flow.source("a", rows()).union(flow.source("b", rows()))
    both.sink("x", Nowhere())
    both.filter("amount > 0").sink("y", Nowhere())
    assert flow.plan().consumers("union_1") == ("x", "filter_1")


def test_a_union_takes_the_column_order_of_its_first_input() -> None:
    flow = Flow("f")
    first, second = flow.source("a", rows(x=pl.Int64(), y=pl.String())), flow.source("b", rows(y=pl.String(), x=pl.Int64()))
    assert list(first.union(second).schema) == ["x", "y"]


def test_text_is_a_column_first_and_sql_otherwise() -> None:
    stream = Flow("f").source("in", rows(**{"order total": pl.Float64(), "a": pl.Int64(), "date": pl.String()}))
    assert stream.select("order total", "a as b", "date", pl.col("a") + 1).schema == pl.Schema(
        {"order total": pl.Float64(), "b": pl.Int64(), "date": pl.String(), "a": pl.Int64()}
    )
    assert stream.with_columns("a * 2 as twice", half="a / 2").schema.names() == ["order total", "a", "date", "twice", "half"]


def test_stateless_operators_do_what_they_describe_and_leave_their_input_alone() -> None:
    before = FRAME.clone()

    def spoil(frame: pl.DataFrame) -> pl.DataFrame:
        frame.insert_column(0, pl.Series("x", [0] * frame.height))
        return frame

    assert free.filter("amount > 0").apply(FRAME)["customer"].to_list() == ["a"]
    assert free.with_columns("amount * 2 as twice").apply(FRAME)["twice"].to_list() == [2.0, -4.0, None]
    assert free.select("customer", pl.lit(1).alias("one")).apply(FRAME).to_dict(as_series=False) == {
        "customer": ["a", "b", None],
        "one": [1, 1, 1],
    }
    assert free.select(pl.lit(1).alias("one")).apply(FRAME).height == 3
    assert free.select(pl.lit(1).alias("one")).apply(FRAME.clear()).height == 0
    assert free.map_batches(spoil).apply(FRAME).columns == ["x", *FRAME.columns]
    assert FRAME.equals(before)


def test_a_declared_schema_is_what_comes_out_of_map_batches() -> None:
    operator = free.map_batches(lambda frame: frame.select("ts", "amount"), schema={"amount": pl.Float32, "ts": pl.Datetime("us")})
    assert operator.apply(FRAME).schema == operator.output_schema([FRAME.schema], "m")


def test_map_batches_is_held_to_the_columns_it_showed_on_an_empty_frame() -> None:
    def half(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select(pl.col("amount").cast(pl.Int64)) if frame.is_empty() else frame.select("amount")

    flow = orders().map_batches(half, name="half").sink("out", Nowhere())
    operator = flow.plan().node("half").op
    assert isinstance(operator, MapBatches)
    with pytest.raises(FlowError, match=r"returned 'amount' as Float64, and Int64 was declared .*: cast it or change schema="):
        operator.apply(FRAME)


@pytest.mark.parametrize(("predicate", "kept"), [("1 = 1", [True] * 3), ("amount > 0", [True, False, False]), ("1 = 2", [False] * 3)])
def test_a_filters_mask_has_one_answer_per_row(predicate: str, kept: list[bool]) -> None:
    assert free.filter(predicate).mask(FRAME).to_list() == kept
    assert free.filter(predicate).mask(FRAME.clear()).to_list() == []
    assert free.filter(predicate).apply(FRAME).height == sum(kept)


def test_operators_describe_themselves_in_the_words_of_the_user() -> None:
    assert free.filter("amount > 0").describe() == "amount > 0"
    assert free.with_columns("amount * 2 as x", y="amount + 1").describe() == "amount * 2 as x, amount + 1 as y"


ROW_LOCAL = [
    "amount > 0 and customer is not null",
    "customer in ('a', 'b')",
    "customer like 'a%'",
    "amount between 1 and 2",
    "case when amount > 1 then true else false end",
    pl.col("customer").is_in(["a"]),
    pl.col("customer").str.split(",").list.contains("x"),
    pl.when(pl.col("amount") > 1).then(pl.col("customer") == "a").otherwise(False),
    pl.col("ts").dt.truncate("1h") > pl.datetime(2020, 1, 1),
    pl.col("customer").str.split(",").list.eval(pl.element().str.len_chars()).list.sum() > 1,
    pl.any_horizontal(pl.all().is_null()),
]


@pytest.mark.parametrize("predicate", ROW_LOCAL, ids=str)
def test_what_looks_at_its_own_row_only_is_accepted(predicate: pl.Expr | str) -> None:
    orders().filter(predicate)


amount = pl.col("amount")
ACROSS_ROWS = [
    amount.sum(), amount - amount.mean(), amount.cum_sum(), amount.sum().over("customer"), amount.sort(), amount.shuffle(),
    amount.shift(1), amount.rank(), amount.diff(), amount.forward_fill(), amount.rolling_mean(3), amount.first(), amount / pl.len(),
    amount.is_duplicated().cast(pl.Float64), amount.reverse(), amount.interpolate(), amount.sort_by("ts"), amount.unique(), amount.head(1),
    amount.fill_null(strategy="mean"), pl.int_range(pl.len()), pl.when(amount > amount.max()).then(1), pl.col("customer").str.to_datetime(),
    amount.map_elements(lambda x: x, return_dtype=pl.Float64), pl.concat_list("amount").list.sample(n=1),
    pl.concat_list("amount").list.eval(pl.element().shuffle()),
    (amount.max() + 1).alias("x"),
    pl.lit(pl.Series([1, 2])), pl.struct(amount.sum()), amount.name.suffix("_x").sum(), amount.sum().name.keep(),
]  # fmt: skip


@pytest.mark.parametrize("expr", ACROSS_ROWS, ids=str)
def test_what_looks_at_other_rows_is_refused(expr: pl.Expr) -> None:
    for build in (orders().with_columns, orders().select):
        with pytest.raises(FlowError, match="not row-local"):
            build(expr, name="x")


COLUMNS = "customer (String), amount (Float64), ts (Datetime(us))"
BAD: list[tuple[Callable[[Stream], object], list[str]]] = [
    (lambda s: s.filter("amout > 0", name="positive"),
     ["filter 'positive': there is no column 'amout'", COLUMNS, "did you mean 'amount'?"]),
    (lambda s: s.filter(pl.col("Amount") > 0), ["filter 'filter_1': there is no column 'Amount'", "did you mean 'amount'?"]),
    (lambda s: s.filter("customer > 1", name="p"), ["filter 'p': cannot compare string with numeric", COLUMNS]),
    (lambda s: s.filter("amount + 1", name="p"), ["filter 'p': the predicate", "Float64", "not one Boolean"]),
    (lambda s: s.filter("amount >", name="p"), ["'amount >' is not an SQL expression"]),
    (lambda s: s.filter(True), ["True is neither SQL text nor a Polars expression"]),  # type: ignore[arg-type]
    (lambda s: s.with_columns(name="w"), ["with_columns 'w': no expression is given"]),
    (lambda s: s.with_columns("customer * 2 as x", name="w"), ["with_columns 'w': ", "customer (String)"]),
    (lambda s: s.with_columns("sum(amount) as t", name="w"), ["with_columns 'w': ", "not row-local", "key_by(...).aggregate(...)"]),
    (lambda s: s.select("amount", "amount", name="c"), ["select 'c': ", "amount"]),
    (lambda s: s.select("nothing", name="c"), ["select 'c': there is no column 'nothing'", COLUMNS]),
    (lambda s: s.map_batches(lambda df: df["x"], name="m"), ["map_batches 'm': ", "ColumnNotFoundError", "pass schema=", COLUMNS]),
    (lambda s: s.map_batches(lambda df: 1, name="m"),
     ["map_batches 'm': the function returned int"]),  # type: ignore[arg-type,return-value]
    (lambda s: s.map_batches(lambda df: None, name="m"),  # type: ignore[arg-type,return-value]
     ["map_batches 'm': the function returned None; it must return a polars DataFrame", "return"]),
    (lambda s: s.map_batches(lambda df: df.lazy(), name="m"),  # type: ignore[arg-type,return-value]
     ["map_batches 'm': the function returned polars.LazyFrame", ".collect()"]),
    (lambda s: s.map_batches(lambda df: pandas.DataFrame(), name="m"),  # type: ignore[arg-type,return-value]
     ["map_batches 'm': the function returned pandas.DataFrame", "pl.from_pandas"]),
    (lambda s: s.map_batches("x"), ["map_batches: 'x' is not a function"]),  # type: ignore[arg-type]
    (lambda s: s.map_batches(lambda df: pl.DataFrame({"x": []}), name="m"),
     ["map_batches 'm': on an empty frame its columns x have no type", "schema="]),
    (lambda s: s.map_batches(lambda df: df, schema={"x": "string"}), ["map_batches: schema={'x': 'string'}", "give Polars types"]),
    (lambda s: s.filter("ts > now()"), ["now( would be the time at which the flow was written"]),
    (lambda s: s.with_columns("date(customer) as d", name="w"), ["with_columns 'w': ", "give a format"]),
    (lambda s: s.with_columns(amount.alias("n.n")).key_by("n.n").aggregate(md.count().alias("n"), name="t"),
     ["aggregate 't': count(): its state column 'n.n'"]),
    (lambda s: s.union(name="u"), ["union 'u': it has 1 input"]),
    (lambda s: s.union(s.select("amount"), name="u"), ["union 'u': input 2 differs in customer, ts", "make them equal with select"]),
    (lambda s: s.union(orders()), ["belongs to another flow"]),
    (lambda s: s.key_by("client"), ["key_by after 'orders': there is no column 'client'", COLUMNS]),
    (lambda s: s.key_by(pl.col("client")), ["key_by after 'orders': there is no column 'client'"]),
    (lambda s: s.key_by(pl.col("amount") * 2), ["key_by after 'orders'", "is not a plain column", "with_columns(...)"]),
    (lambda s: s.key_by(7), ["key_by after 'orders': 7 is not a column's name"]),  # type: ignore[arg-type]
    (lambda s: s.key_by(), ["key_by after 'orders': no column is given"]),
    (lambda s: s.select(pl.struct(pl.concat_list("amount")).alias("k")).key_by("k"), ["column 'k' is Struct", "keys can be integers"]),
    (lambda s: s.key_by("customer").aggregate(name="t"), ["aggregate 't': it needs at least one aggregate"]),
    (lambda s: s.key_by("customer").aggregate(md.sum("amout"), name="t"),
     ["aggregate 't': sum(amout): there is no column 'amout'", "did you mean"]),
    (lambda s: s.key_by("customer").aggregate(md.sum("customer"), name="t"),
     ["aggregate 't': sum(customer): column 'customer' is String; it needs a number"]),
    (lambda s: s.key_by("customer").aggregate(md.mean("ts"), name="t"), ["aggregate 't': mean(ts): column 'ts' is Datetime"]),
    (lambda s: s.key_by("customer").aggregate(md.count(), md.count(), name="t"),
     ["aggregate 't': two columns would be named 'count'", ".alias(...)"]),
    (lambda s: s.key_by("customer").aggregate(md.count().alias("customer"), name="t"), ["two columns would be named 'customer'"]),
    (lambda s: s.key_by("customer", "customer").aggregate(md.count(), name="t"), ["key column 'customer' is given twice"]),
    (lambda s: s.key_by("customer").aggregate(pl.len()), ["is not an aggregate", "use md.count()"]),  # type: ignore[arg-type]
    (lambda s: s.key_by("customer").aggregate(md.quantile("amount", 50)), ["quantile(amount): q is 50; it must be between 0 and 1"]),
    (lambda s: s.filter("amount > 0", name="orders"),
     ["filter 'orders': there is already a source of that name", "or make a new md.Flow(...) if you ran this cell again"]),
    (lambda s: s.filter("amount > 0", name="a/b"), ["filter 'a/b': not a valid name", "folder"]),
    (lambda s: s.filter("amount > 0").flow.plan(), ["flow 'f': it has no sink"]),
    (lambda s: Flow("no spaces"), ["flow 'no spaces': not a valid name"]),
    (lambda s: Flow("f").source("empty", rows(x=pl.Int64()).__class__(())), ["source 'empty': it has no columns"]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "words"), BAD, ids=[words[0] for _, words in BAD])
def test_a_bad_flow_is_refused_where_it_is_written_with_what_is_there_instead(build: Callable[[Stream], object], words: list[str]) -> None:
    with pytest.raises(FlowError) as caught:
        build(orders())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "columns", [("customer", "amount"), (["customer", "amount"],), (pl.col("customer"), "amount")], ids=["names", "a list", "a column"]
)
def test_keys_may_be_names_a_list_of_names_or_plain_columns(columns: tuple[Any, ...]) -> None:
    assert orders().key_by(*columns).keys == ("customer", "amount")


def test_a_flow_shows_its_plan_and_a_stream_its_columns() -> None:
    stream = orders().filter("amount > 0", name="positive")
    assert repr(stream) == "<Stream 'positive' of flow 'f': customer (String), amount (Float64), ts (Datetime(us))>"
    assert repr(stream.key_by("customer")) == f"<KeyedStream by customer of {stream!r}>"
    assert (
        repr(stream.flow) == "<Flow 'f', not complete: orders, positive; flow 'f': it has no sink; end every stream with .sink(name, ...)>"
    )
    flow = stream.sink("out", Nowhere())
    assert repr(flow) == flow.explain()
    assert repr(Flow("new")) == "<Flow 'new', empty: begin with flow.source(name, ...)>"


def test_a_refused_operator_leaves_the_flow_as_it_was() -> None:
    stream = orders()
    with pytest.raises(FlowError):
        stream.filter("amout > 0", name="positive")
    assert stream.filter("amount > 0", name="positive").name == "positive"


def test_a_folder_whose_files_one_source_archives_is_refused_to_another(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "same").symlink_to(tmp_path / "in")
    flow = Flow("twice")
    first = flow.source("first", files(tmp_path / "in", format="json", schema={"a": "long"}))
    second = flow.source("second", files(tmp_path / "same", format="json", schema={"a": "long"}, after="archive"))
    first.union(second).sink("out", discard())
    with pytest.raises(FlowError, match=r"source 'second' archives the files of .* which 'first' reads, too"):
        flow.start(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_every_option_of_start_is_explained_where_a_user_looks() -> None:
    explained = Flow.start.__doc__ or ""
    for option in [*Settings.__dataclass_fields__, "spark"]:
        assert f"``{option}``" in explained


def test_a_flow_that_reads_what_it_writes_or_writes_a_folder_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows_in = files(tmp_path / "in", format="json", schema={"a": "long"})
    loop = Flow("loop")
    loop.source("rows", rows_in).sink("out", parquet(tmp_path / "in"))
    with pytest.raises(FlowError, match=r"sink 'out' writes into .*, which source 'rows' reads"):
        loop.start(tmp_path / "state")
    twice = Flow("twice")
    stream = twice.source("rows", rows_in)
    stream.sink("one", parquet(tmp_path / "out"))
    stream.filter("a > 0", name="some").sink("two", parquet(tmp_path / "out"))
    with pytest.raises(FlowError, match=r"sinks 'one' and 'two' both write into"):
        twice.start(tmp_path / "state")
    assert not (tmp_path / "state").exists()
