"""Keys that are structs or null, and conditions of joins that fail on some pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from tests.local import Local, Script, constants

import meander as md
from meander.errors import BadInput, FlowError
from meander.state import compaction as compaction_module

COLUMNS: dict[str, Any] = {"a": pl.Int64(), "b": pl.String(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
PAIRS = [(1, "x"), (1, None), (None, "x"), (None, None), (2, "y")]


def rows(*given: tuple[Any, ...]) -> Any:
    return ((0, tuple((a, b, v, at * SECOND) for a, b, v, at in given)),)


SCRIPT = tuple(rows(*((a, b, 10 * epoch + n, epoch) for n, (a, b) in enumerate(PAIRS))) for epoch in range(6))


class Counting(md.Processor):
    output: ClassVar[Any] = {"n": "int64", "first": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        a = key["a"] if isinstance(key, dict) else -1 if key is None else key[0]
        return (state.n, -1 if a is None else a)


OPERATORS: dict[str, Callable[[Any, tuple[str, ...]], Any]] = {
    "aggregate": lambda s, k: s.key_by(*k).aggregate(md.sum("v").alias("s"), md.collect("v").alias("vs"), name="op"),
    "distinct": lambda s, k: s.key_by(*k).aggregate(md.count_distinct("v").alias("d"), md.top_k("v", 2).alias("best"), name="op"),
    "window": lambda s, k: s.key_by(*k).window(md.tumbling("2s")).aggregate(md.sum("v").alias("s"), name="op"),
    "sliding": lambda s, k: s.key_by(*k).window(md.sliding("2s", "1s")).aggregate(md.sum("v").alias("s"), emit="update", name="op"),
    "session": lambda s, k: s.key_by(*k).window(md.session("1s")).aggregate(md.sum("v").alias("s"), name="op"),
    "deduplicate": lambda s, k: s.key_by(*k).deduplicate(ttl="2s", name="op"),
    "latest": lambda s, k: s.key_by(*k).latest(order="v", name="op"),
    "top": lambda s, k: s.key_by(*k).top(2, by="v", name="op"),
    "window top": lambda s, k: s.key_by(*k).window(md.tumbling("2s")).top(1, by="v", name="op"),
    "process": lambda s, k: s.key_by(*k).process(Counting, name="op"),
}  # fmt: skip


def results(folder: Path, operator: Callable[[Any, tuple[str, ...]], Any], struct: bool, parallelism: int) -> list[str]:
    """What comes out, with the keys as two columns, also where they were one struct."""
    flow, out = md.Flow("f"), md.memory()
    stream = flow.source("in", Script(COLUMNS, SCRIPT))
    if struct:
        key = pl.when(pl.col("a").is_null() & pl.col("b").is_null()).then(None).otherwise(pl.struct("a", "b"))
        stream = stream.select(key.alias("k"), "v", "ts")
    out_of = operator(stream.watermark("ts"), ("k",) if struct else ("a", "b"))
    out_of.sink("out", out)
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, parallelism)
        for _ in range(3):
            local.step()
        local = Local(flow, folder, parallelism, small=False)
        local.run(flush=True)
    frame = pl.DataFrame(pl.from_arrow(out.table()))
    if struct:
        frame = frame.select(pl.col("k").struct.field("a", "b"), pl.exclude("k"))
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in frame.to_dicts())


@pytest.mark.many
@pytest.mark.parametrize("name", OPERATORS)
def test_a_struct_is_a_key_like_its_fields(tmp_path: Path, name: str) -> None:
    operator = OPERATORS[name]
    plain = results(tmp_path / "plain", operator, False, 2)
    assert plain
    for parallelism in (1, 3):
        assert results(tmp_path / f"struct{parallelism}", operator, True, parallelism) == plain


def test_structs_in_structs_are_keys_and_lists_are_not(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    stream = flow.source("in", Script(COLUMNS, SCRIPT))
    deep = stream.with_columns(pl.struct(pl.struct("a").alias("inner"), "b").alias("k"))
    deep.key_by("k").aggregate(md.count().alias("n"), name="op").sink("out", out)
    Local(flow, tmp_path).run()
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "op")))
    assert state.height == len(PAIRS)
    assert {row["k"]["b"] for row in state.to_dicts() if row["k"]["inner"]["a"] == 1} == {"x", None}
    with pytest.raises(FlowError, match=r"keys can be integers, .* and structs of these"):
        stream.with_columns(pl.struct(pl.concat_list("a")).alias("k")).key_by("k")


def joined(folder: Path, how: str, keys: dict[str, Any], parallelism: int = 2, **options: Any) -> tuple[list[tuple[Any, ...]], Local]:
    flow, out = md.Flow("f"), md.memory()
    first = rows((1, "x", 1, 1), (None, "x", 2, 1), (None, None, 3, 1))
    second = rows((1, "x", 10, 1), (None, "x", 20, 1), (None, None, 30, 2))
    left = flow.source("left", Script(COLUMNS, (first,))).watermark("ts", name="lt")
    other = flow.source("right", Script(COLUMNS, (second,))).select("a", "b", pl.col("v").alias("w"), "ts").watermark("ts", name="rt")
    if "s" in keys["on"]:
        left, other = (one.with_columns(pl.struct("a", "b").alias("s")) for one in (left, other))
    left.join(other, within="10s", how=how, name="j", **keys, **options).sink("out", out)
    local = Local(flow, folder, parallelism)
    local.run(flush=True)
    return sorted(pl.DataFrame(pl.from_arrow(out.table())).select("v", "w").rows(), key=str), local


@pytest.mark.parametrize(
    ("how", "keys", "expected"),
    [
        ("inner", {"on": ["a", "b"]}, [(1, 10)]),
        ("inner", {"on": ["a", "b"], "nulls_equal": True}, [(1, 10), (2, 20), (3, 30)]),
        ("full", {"on": ["a", "b"]}, [(1, 10), (2, None), (3, None), (None, 20), (None, 30)]),
        ("full", {"on": ["a", "b"], "nulls_equal": True}, [(1, 10), (2, 20), (3, 30)]),
        ("inner", {"on": ["s"]}, [(1, 10), (2, 20), (3, 30)]),
    ],
)
def test_nulls_are_equal_where_a_join_says_so_and_within_structs(
    tmp_path: Path, how: str, keys: dict[str, Any], expected: list[tuple[Any, ...]]
) -> None:
    assert joined(tmp_path, how, keys)[0] == expected


def test_nulls_are_equal_in_a_table_that_does_not_change_too(tmp_path: Path) -> None:
    flow, outs = md.Flow("f"), {nulls: md.memory() for nulls in (False, True)}
    stream = flow.source("in", Script(COLUMNS, (rows((1, "x", 1, 1), (None, "y", 2, 1)),)))
    table = pl.DataFrame({"a": [1, None], "name": ["one", "none"]})
    for nulls, out in outs.items():
        stream.join_static(table, on="a", nulls_equal=nulls, how="left").sink(f"out_{nulls}", out)
    Local(flow, tmp_path).run()
    assert [sorted(r["name"] or "-" for r in out.table().to_pylist()) for out in outs.values()] == [["-", "one"], ["none", "one"]]


def test_whether_nulls_are_equal_is_part_of_the_plan_and_its_absence_changes_no_digest() -> None:
    flow = md.Flow("f")
    one, other = (flow.source(name, Script(COLUMNS, ())) for name in ("one", "other"))
    plain, equal = (flow._nodes[one.join(other, on="a", nulls_equal=nulls).name].op for nulls in (False, True))
    assert "null" not in plain.canonical()
    assert plain.canonical() != equal.canonical()
    assert equal.describe() == "inner on a, nulls equal, whenever they come"


# -- conditions that fail -----------------------------------------------------------------------------------------


def failing(folder: Path, how: str, parallelism: int, small: bool, strict: bool = False) -> tuple[list[Any], list[Any]]:
    """Pairs of a key, of which the condition takes the number in a text: of some it is none."""
    flow, out = md.Flow("f"), md.memory()
    words = ["1", "2", "three", "4", "five"]
    first = tuple(rows(*((n % 2, word, n, 1) for n, word in enumerate(words)), (7, "6", 6, 1)) for _ in range(1))
    second = (rows((0, "", 100, 1), (1, "", 101, 1)), rows((0, "", 200, 2), (1, "", 201, 2)))
    left = flow.source("left", Script(COLUMNS, first)).watermark("ts", name="lt")
    right = flow.source("right", Script(COLUMNS, second)).select("a", pl.col("v").alias("w"), "ts").watermark("ts", name="rt")
    left.join(right, on="a", within="5s", how=how, where="CAST(b AS INT) + w > 0", name="j").sink("out", out)
    local = Local(flow, folder, parallelism, small, strict=strict)
    local.run(flush=True)
    letters = pl.concat([pl.read_parquet(path) for path in (folder / "dead_letters").glob("*.parquet")]).to_dicts()
    pairs = [json.loads(letter["content"]) for letter in letters]
    told = sorted((letter["operator"], letter["position"], pair["v"], pair["w"]) for letter, pair in zip(letters, pairs, strict=True))
    assert all(letter["reason"].startswith("where CAST(b AS INT) + w > 0: ") for letter in letters)
    return sorted(pl.DataFrame(pl.from_arrow(out.table())).select("v", "w").rows(), key=str), told


@pytest.mark.parametrize(("parallelism", "small"), [(1, True), (3, False)])
def test_pairs_on_which_the_condition_fails_are_dead_letters_and_no_pairs(tmp_path: Path, parallelism: int, small: bool) -> None:
    out, letters = failing(tmp_path, "left", parallelism, small)
    assert letters == [("j", "j key 0", 2, 100), ("j", "j key 0", 2, 200), ("j", "j key 0", 4, 100), ("j", "j key 0", 4, 200)]
    assert out == [(0, 100), (0, 200), (1, 101), (1, 201), (2, None), (3, 101), (3, 201), (4, None), (6, None)]


def test_a_strict_flow_stops_at_a_pair_on_which_the_condition_fails(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="operator 'j', epoch 1, a pair of key 0: where CAST"):
        failing(tmp_path, "inner", 2, True, strict=True)
