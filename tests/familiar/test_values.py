"""What people give in the place of ours: a sentence that says what it is, and what to give instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

import meander as md


def made(module: str, name: str) -> Any:
    """An object of a class of PySpark's, as far as messages can tell."""
    return type(name, (), {"__module__": module, "__repr__": lambda self: "Column<'(amount > 0)'>"})()


COLUMN, FRAME = made("pyspark.sql.classic.column", "Column"), made("pyspark.sql.classic.dataframe", "DataFrame")


def orders() -> md.Stream:
    return md.Flow("f").source("orders", rows())


def keyed() -> md.KeyedStream:
    return orders().key_by("customer")


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: orders().filter(COLUMN), r"a PySpark Column is neither SQL text nor a Polars expression; write it as text"),
    (lambda: orders().filter(lambda row: row), r"a lambda is neither .*; a Python function over rows is .map_batches\(function\)"),
    (lambda: orders().filter(pandas.Series([True])), r"a pandas Series is neither .* use .join_static\(table, on='id'\)"),
    (lambda: orders().filter("ts > '2024-01-01'"), r"a time is compared with text; write TIMESTAMP '2024-01-31 12:00:00' in SQL, or"),
    (lambda: orders().with_columns({"a": "amount"}), r"a dict is neither .*; give its items as named arguments"),  # type: ignore[arg-type]
    (lambda: orders().key_by(COLUMN), r"a PySpark Column is not a column's name; write the column's name as text; columns are customer"),
    (lambda: keyed().aggregate(md.count), r"the function 'count' is not an aggregate; call it: md.count\(...\)"),  # type: ignore[arg-type]
    (lambda: keyed().aggregate({"amount": "sum"}), r"a dict is not an aggregate; write one argument per aggregate"),  # type: ignore[arg-type]
    (lambda: keyed().aggregate([md.count()]), r"a list is not an aggregate; give its items one by one"),  # type: ignore[arg-type]
    (lambda: keyed().aggregate(pl.col("amount").sum()), r"a Polars expression is not an aggregate, since"),  # type: ignore[arg-type]
    (lambda: keyed().aggregate(md.Aggregator), r"the class 'Aggregator' is not an aggregate; make an instance"),  # type: ignore[arg-type]
    (lambda: orders().watermark(pl.col("ts")), r"a Polars expression is not a column's name; .*columns are"),  # type: ignore[arg-type]
    (lambda: orders().watermark("customer"), r"'customer' is String; it must be a Datetime: cast it first, as in .*str.to_datetime"),
    (lambda: orders().union("x"), r"'x' is not a stream; give what flow.source\(...\)"),  # type: ignore[arg-type]
    (lambda: orders().union([orders()]), r"a list is not a stream; give its items one by one"),  # type: ignore[arg-type]
    (lambda: orders().join(pl.DataFrame({"a": [1]}), on="a"), r"a Polars DataFrame is not a stream; .* join_static"),  # type: ignore[arg-type]
    (lambda: orders().join_static(pandas.DataFrame({"a": [1]}), on="a"), r"pl.from_pandas\(table\) makes one"),  # type: ignore[arg-type]
    (lambda: orders().sink("o", "out/"), r"sink 'o': 'out/' is no sink; to write files write md.parquet\('out/'\)"),  # type: ignore[arg-type]
    (lambda: orders().sink("o", print), r"the function 'print' is no sink; write md.foreach_batch\(function\)"),  # type: ignore[arg-type]
    (lambda: orders().sink("o", md.console), r"the function 'console' is no sink; call it: md.console\(...\)"),  # type: ignore[arg-type]
    (lambda: orders().sink("o", rows()), r"is no sink, but a source"),  # type: ignore[arg-type]
    (lambda: md.Flow("f").source("in", FRAME), r"a PySpark DataFrame is no source; write md.spark_stream\(df\)"),
    (lambda: md.Flow("f").source("in", pl.DataFrame({"a": [1]})), r"a Polars DataFrame is no source, since it does not grow"),  # type: ignore[arg-type]
    (lambda: md.Flow("f").source("in", "in/"), r"'in/' is no source; to read files write md.files\('in/', format="),  # type: ignore[arg-type]
    (lambda: md.Flow("f").source("in", md.files), r"the function 'files' is no source; call it: md.files\(...\)"),  # type: ignore[arg-type]
    (lambda: md.Flow("f").source("in", Nowhere()), r"is no source, but a sink"),  # type: ignore[arg-type]
    (lambda: md.Flow("f").source(3, rows()), r"source: its name comes first, as text, such as 'orders'; 3 is none"),  # type: ignore[arg-type]
    (lambda: md.Flow(3), r"flow: its name comes first, as text"),  # type: ignore[arg-type]
    (lambda: md.files(["a/", "b/"]), r"one folder is read, and a list is given; .* md.files\('a/', ...\) and md.files\('b/'"),  # type: ignore[arg-type]
    (lambda: md.files(3), r"files: 3 is not the path of a folder; write md.files\('in/'\)"),  # type: ignore[arg-type]
    (lambda: md.parquet(3), r"parquet: 3 is not the path of a folder"),  # type: ignore[arg-type]
    (lambda: md.files(".", "json", {"a": "lnog"}), r"unknown type 'lnog'; .* did you mean 'long'\?"),
    (lambda: md.files(".", "json", {"a": float}), r"is not a type; give a name such as 'double' or a Polars type"),
    (lambda: keyed().process(lambda row: row), r"process: a lambda is no processor; write a subclass of md.Processor"),  # type: ignore[arg-type]
    (lambda: orders().sink("o", md.discard()).start(), r"say where its state goes, a folder .* flow.start\('state/'\)"),  # type: ignore[call-overload]
    (lambda: orders().sink("o", md.discard()).start(""), r"store '': a folder or an address is needed, such as 'state/'"),
    (lambda: md.read_state(None, "totals"), r"store None: a folder or an address is needed"),  # type: ignore[arg-type]
    (lambda: md.read_state("/no/such/store", "totals"), r"there is no flow in it; give what was given to flow.start"),
    (lambda: md.Become(3), r"md.Become\(3\): give the flow as it is to be, as in md.Become\(flow\)"),  # type: ignore[arg-type]
    (lambda: md.generator("wikpedia"), r"unknown kind; .* did you mean 'wikipedia'\?"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "message"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_is_given_in_the_place_of_ours_is_refused_with_what_to_write(write: Callable[[], Any], message: str) -> None:
    with pytest.raises(md.MeanderError, match=message) as caught:
        write()
    assert " at 0x" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_or_a_pattern_in_the_place_of_a_folder_is_known_for_one(tmp_path: Path) -> None:
    (tmp_path / "1.json").touch()
    with pytest.raises(md.ConfigError, match=r"this is a file, and a folder is needed: .* write '.*'$") as caught:
        md.files(tmp_path / "1.json", "json", {"a": "long"})
    assert str(caught.value).endswith(f"write {str(tmp_path)!r}")
    with pytest.raises(md.ConfigError, match=rf"patterns are not understood, .* write {str(tmp_path)!r}"):
        md.files(tmp_path / "*.json", "json", {"a": "long"})


def test_columns_may_be_given_in_a_list_as_in_pyspark() -> None:
    assert orders().select(["customer", "amount"]).schema.names() == ["customer", "amount"]
