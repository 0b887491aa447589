"""Names that people bring from other libraries are answered with ours, and what the answer names exists."""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from collections.abc import Mapping
from types import SimpleNamespace

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

import meander as md
from meander.familiar.names import CONNECTED, FLOW, KEYED, MODULE, RUN, STREAM, WINDOWED
from meander.flow import WindowedStream

TABLES: list[tuple[Mapping[str, str], type | SimpleNamespace]] = [
    (STREAM, md.Stream), (KEYED, md.KeyedStream), (CONNECTED, md.ConnectedStreams), (WINDOWED, WindowedStream), (FLOW, md.Flow),
    (RUN, md.Run), (RUN, md.Replicas),
]  # fmt: skip
CLASSES = (md.Stream, md.KeyedStream, md.ConnectedStreams, WindowedStream, md.Flow, md.Run, md.Replicas)
OURS = {name for owner in CLASSES for name in dir(owner)}
POLARS = {"datetime", "cast", "fill_null", "hash", "str", "alias"}


def orders() -> md.Stream:
    return md.Flow("f").source("orders", rows())


def answer(owner: object, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    return str(caught.value)


def test_what_pyspark_calls_otherwise_is_answered_with_our_name() -> None:
    stream = orders()
    expected = {
        "groupBy": ".key_by('customer').aggregate(md.count())", "withColumn": ".with_columns(", "writeStream": ".sink('out', md.parquet(",
        "withColumnRenamed": ".rename({", "orderBy": ".top(10, by='amount')", "limit": ".top(", "dropDuplicates": ".deduplicate(",
        "withWatermark": ".watermark('ts', grace=", "show": "md.console()", "mapInPandas": ".map_batches(",
        "transformWithStateInPandas": ".process(", "selectExpr": ".select(", "start": "flow.start('state/')",
    }  # fmt: skip
    for name, ours in expected.items():
        assert ours in answer(stream, name), name
    assert ".aggregate(md.count())" in answer(stream.key_by("customer"), "count")
    assert "before it" in answer(stream.key_by("customer"), "filter")
    assert ".connect(other.key_by('id'))" in answer(stream.key_by("customer"), "cogroup")
    assert "on_other_events" in answer(md, "KeyedCoProcessFunction")
    assert "keep what flow.source(...)" in answer(stream.sink("out", Nowhere()), "sink")


def test_a_misspelt_name_is_answered_with_the_one_that_is_like_it() -> None:
    assert answer(orders(), "filtr") == "'Stream' object has no attribute 'filtr'; did you mean 'filter'?"
    assert "did you mean 'aggregate'?" in answer(orders().key_by("customer"), "agregate")
    assert answer(md, "aggregat") == "module 'meander' has no attribute 'aggregat'; did you mean 'aggregate'?"
    assert answer(orders(), "zzzzzz") == "'Stream' object has no attribute 'zzzzzz'"


def test_a_column_that_is_taken_for_an_attribute_is_known_for_one() -> None:
    assert "it is a column; in an expression write pl.col('amount')" in answer(orders(), "amount")
    with pytest.raises(TypeError, match=r"a Stream is no table: .* write pl.col\('amount'\)"):
        orders()["amount"]  # type: ignore[index]
    with pytest.raises(TypeError, match=r"rows are seen with .sink\('out', md.console\(\)\)"):
        list(orders())  # type: ignore[call-overload]


def test_the_answer_is_not_given_twice_in_a_traceback() -> None:
    try:
        orders().filtr  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError as error:
        shown = "".join(traceback.format_exception(error))
    assert shown.lower().count("did you mean") == 1


def test_objects_with_answers_can_still_be_copied_pickled_and_asked() -> None:
    stream = orders()
    assert not hasattr(stream, "groupBy")
    assert copy.copy(stream).name == "orders"
    assert md.Stream.__new__(md.Stream).__class__ is md.Stream
    with pytest.raises(AttributeError, match="no attribute 'flow'"):
        _ = md.Stream.__new__(md.Stream).flow
    assert pickle.loads(pickle.dumps(md.KeyedStream, protocol=5)) is md.KeyedStream


@pytest.mark.parametrize(("table", "owner"), TABLES, ids=lambda given: getattr(given, "__name__", ""))
def test_no_answer_is_for_a_name_that_is_there(table: Mapping[str, str], owner: type) -> None:
    assert not set(table) & set(dir(owner))


def test_no_answer_is_for_a_public_name() -> None:
    assert not set(MODULE) & set(md.__all__)


@pytest.mark.parametrize("table", [STREAM, KEYED, WINDOWED, FLOW, RUN, MODULE])
def test_every_name_in_an_answer_exists(table: Mapping[str, str]) -> None:
    for asked, text in table.items():
        shown = text.replace("{name}", asked)
        assert set(re.findall(r"\bmd\.(\w+)", shown)) <= set(md.__all__), asked
        called = set(re.findall(r"(?<!\bmd)(?<!\bpl)\.(\w+)\(", shown))
        assert called <= OURS | POLARS, (asked, called - OURS)
        if "{name}" in text and "pl." in text:
            assert hasattr(pl, asked), asked


def test_completion_shows_public_names_only() -> None:
    assert set(dir(md)) == {*md.__all__, "__version__"}
    assert {"spark", "spark_stream", "avg"} <= set(dir(md))
    assert not {"Any", "engine", "annotations", "TYPE_CHECKING"} & set(dir(md))
