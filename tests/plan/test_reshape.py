"""Columns dropped, renamed and exploded."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.plan.streams import rows

import meander as md
from meander.plan.operators import MapBatches, Select
from meander.plan.reshape import plan_explode
from meander.task.evaluate import DeadLetter, evaluate
from meander.task.rows import Rows

TAGS = {"id": pl.Int64(), "tags": pl.List(pl.String), "marks": pl.List(pl.Int64), "pair": pl.Array(pl.Int8, 2), "note": pl.String()}


def posts() -> md.Stream:
    return md.Flow("f").source("posts", rows(**TAGS))


def applied(stream: md.Stream, frame: pl.DataFrame) -> pl.DataFrame:
    op = stream.flow._nodes[stream.name].op
    assert isinstance(op, Select | MapBatches)
    return op.apply(frame)


def test_where_is_filter_and_avg_is_mean() -> None:
    stream = md.Flow("f").source("orders", rows())
    assert stream.where("amount > 0", name="positive").name == "positive"
    assert md.avg("amount").describe() == md.mean("amount").describe()


def test_drop_keeps_all_others_in_their_order() -> None:
    assert posts().drop("marks", "note").schema.names() == ["id", "tags", "pair"]
    assert posts().drop(["marks", "note"]).schema.names() == ["id", "tags", "pair"]
    frame = pl.DataFrame({"id": [1], "note": ["x"]}, schema={"id": pl.Int64, "note": pl.String})
    assert applied(md.Flow("f").source("p", rows(id=pl.Int64(), note=pl.String())).drop("note"), frame).to_dicts() == [{"id": 1}]


def test_rename_changes_names_and_nothing_else() -> None:
    assert posts().rename({"id": "post", "note": "text"}).schema == pl.Schema(
        {"post": pl.Int64(), **{name: TAGS[name] for name in ("tags", "marks", "pair")}, "text": pl.String()}
    )
    swapped = md.Flow("f").source("p", rows(a=pl.Int64(), b=pl.Int64())).rename({"a": "b", "b": "a"})
    assert applied(swapped, pl.DataFrame({"a": [1], "b": [2]})).to_dict(as_series=False) == {"b": [1], "a": [2]}


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: posts().drop("nte"), r"drop after 'posts': there is no column 'nte'; .* did you mean 'note'\?"),
    (lambda: posts().drop(), r"drop after 'posts': say which columns"),
    (lambda: posts().drop(*TAGS), r"drop after 'posts': no column would be left"),
    (lambda: posts().rename({"nte": "x"}), r"rename after 'posts': there is no column 'nte'"),
    (lambda: posts().rename({"id": "note"}), r"two columns would be named 'note'"),
    (lambda: posts().rename("id", "x"), r"give old and new names as a dict"),  # type: ignore[arg-type]
    (lambda: posts().rename({}), r"say which columns"),
    (lambda: posts().rename({"id": 3}), r"3 is not a column's name"),  # type: ignore[dict-item]
    (lambda: posts().explode(), r"say which column, as in explode\('tags'\)"),
    (lambda: posts().explode("tgs"), r"explode 'explode_1': there is no column 'tgs'; .* did you mean 'tags'\?"),
    (lambda: posts().explode("note"), r"column 'note' is String; a List or an Array is needed; split text first"),
    (lambda: posts().explode("id"), r"column 'id' is Int64; a List or an Array is needed"),
    (lambda: posts().explode("tags", "tags"), r"a column is given twice"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "message"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_cannot_be_is_refused_where_it_is_written(write: Callable[[], Any], message: str) -> None:
    with pytest.raises(md.FlowError, match=message):
        write()


def test_explode_gives_a_row_per_item_and_repeats_the_others() -> None:
    stream = posts().explode("tags", "marks")
    assert stream.schema == pl.Schema({**TAGS, "tags": pl.String(), "marks": pl.Int64()})
    assert posts().explode("pair").schema["pair"] == pl.Int8()
    frame = pl.DataFrame(
        {
            "id": [1, 2, 3, 4],
            "tags": [["a", "b"], [], None, ["c"]],
            "marks": [[1, 2], [], None, [3]],
            "pair": [[1, 2]] * 4,
            "note": ["x"] * 4,
        },
        schema=TAGS,
    )
    assert applied(stream, frame).select("id", "tags", "marks").rows() == [(1, "a", 1), (1, "b", 2), (4, "c", 3)]
    kept = applied(posts().explode("tags", "marks", keep_empty=True), frame)
    assert kept.select("id", "tags", "marks").rows() == [(1, "a", 1), (1, "b", 2), (2, None, None), (3, None, None), (4, "c", 3)]
    assert applied(posts().explode("pair"), frame)["pair"].to_list() == [1, 2] * 4
    assert applied(stream, frame.clear()).schema == stream.schema


def test_a_row_whose_lists_differ_in_length_is_a_dead_letter_and_no_other() -> None:
    stream = posts().explode("tags", "marks")
    frame = pl.DataFrame(
        {"id": [1, 2], "tags": [["a"], ["b", "c"]], "marks": [[1], [2]], "pair": [[1, 2]] * 2, "note": ["x"] * 2}, schema=TAGS
    )
    dead: list[DeadLetter] = []
    out = evaluate(stream.flow._nodes[stream.name], Rows(frame, 0), dead, 1, False)
    assert out.frame["id"].to_list() == [1]
    assert len(dead) == 1
    assert '"id": 2' in dead[0].content


@pytest.mark.parametrize("keep_empty", [False, True])
@pytest.mark.parametrize("columns", [("tags", "marks"), ("marks", "tags"), ("tags", "pair"), ("pair", "tags")])
@pytest.mark.parametrize("empty", [None, []])
def test_an_empty_list_beside_one_with_items_is_a_dead_letter_too(columns: Any, empty: Any, keep_empty: bool) -> None:
    """In whatever order the columns are given: no row is lost."""
    stream = posts().explode(*columns, keep_empty=keep_empty)
    frame = pl.DataFrame(
        {"id": [1, 2, 3], "tags": [["a", "b"], empty, None], "marks": [[1, 2], [7, 8], None], "pair": [[1, 2], [3, 4], None], "note": "x"},
        schema=TAGS,
    )
    dead: list[DeadLetter] = []
    out = evaluate(stream.flow._nodes[stream.name], Rows(frame, 0), dead, 1, False)
    assert out.frame["id"].to_list() == ([1, 1, 3] if keep_empty else [1, 1])
    assert [letter.content[:8] for letter in dead] == ['{"id": 2']


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("keep_empty", [False, True])
def test_a_row_that_was_exploded_stays_in_its_unit(seed: int, keep_empty: bool) -> None:
    """Also where as many rows leave as came: some rows gave none, others several."""
    dice = random.Random(seed)
    lists = [None if dice.random() < 0.1 else [f"{row}.{item}" for item in range(dice.choice((0, 1, 1, 2)))] for row in range(8)]
    units = np.sort(np.array([dice.randrange(3) for _ in lists], np.uint64))
    frame = pl.DataFrame({"row": range(8), "tags": lists}, schema={"row": pl.Int64, "tags": pl.List(pl.String)})
    stream = md.Flow("f").source("p", rows(row=pl.Int64(), tags=pl.List(pl.String))).explode("tags", keep_empty=keep_empty)
    out = evaluate(stream.flow._nodes[stream.name], Rows(frame, None, units), [], 1, False)
    expected = [(row, item) for row, given in enumerate(lists) for item in (given or ([None] if keep_empty else []))]
    assert out.frame.rows() == expected
    assert out.units is not None
    assert out.units.tolist() == [units[row] for row, _ in expected]


def test_a_row_that_met_several_of_a_table_stays_in_its_unit() -> None:
    """As many rows leave as came: one found none, one found two."""
    stream = md.Flow("f").source("p", rows(k=pl.Int64())).join_static(pl.DataFrame({"k": [2, 2], "v": ["a", "b"]}), on="k")
    out = evaluate(stream.flow._nodes[stream.name], Rows(pl.DataFrame({"k": [1, 2]}), None, np.array([7, 9], np.uint64)), [], 1, False)
    assert out.frame.rows() == [(2, "a"), (2, "b")]
    assert out.units is not None
    assert out.units.tolist() == [9, 9]


def test_explode_is_the_same_operator_for_the_same_columns() -> None:
    one, same, other = plan_explode(["a"], False, ""), plan_explode(["a"], False, ""), plan_explode(["a"], True, "")
    assert one.canonical() == same.canonical() != other.canonical()
    assert not one.code().digest
