"""Times that Python's datetime lacks, in processors: such a row is a dead letter with its time as a number, and the flow goes on."""

# ruff: noqa: RUF012

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander.errors import BadInput

SECOND = 1_000_000
FAR = 253_402_300_800 * SECOND
"""The first microsecond of the year 10000."""


class Each(md.Processor):
    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(list(rows))
        ctx.set_timer("10s")
        assert ctx.watermark is None or ctx.watermark <= ctx.time
        yield (state.n,)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (-state.n,)


class Whole(md.Processor):
    """Makes Python objects of what it gets."""

    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        rows.rows()
        new = state.join(rows.group_by("k").len("m"), on="k", how="left", nulls_equal=True, maintain_order="left")
        new = new.select("k", pl.col("n") + pl.col("m"))
        return new, new


def run(folder: Path, columns: dict[str, Any], epochs: Any, processor: Any, **options: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    flow, out = md.Flow("p"), md.memory()
    script = Script(columns, tuple(((0, tuple(rows)),) for rows in epochs))
    flow.source("events", script).watermark("ts").key_by("k").process(processor, name="p").sink("out", out)
    local = Local(flow, folder, **options)
    local.run(flush=True)
    rows = pl.DataFrame(pl.from_arrow(out.table()))
    letters = sorted((folder / "dead_letters").glob("*.parquet"))
    found = pl.concat([pl.read_parquet(path) for path in letters]).to_dicts() if letters else []
    return sorted(rows.rows(), key=str) if rows.height else [], found


TIMES = {"us": pl.Datetime("us"), "zone": pl.Datetime("us", "Asia/Tokyo"), "ms": pl.Datetime("ms")}


@pytest.mark.many
@pytest.mark.parametrize("processor", [Each, Whole])
@pytest.mark.parametrize("moment", [FAR, -FAR, (1 << 62) - 60 * SECOND, 1 << 62, (1 << 63) - 1, -(1 << 63) + 1])
@pytest.mark.parametrize("dtype", list(TIMES))
def test_a_row_of_another_year_is_a_dead_letter(tmp_path: Path, processor: Any, moment: int, dtype: str) -> None:
    """The rows after it are those of before: what is behind the mark is no matter to a processor."""
    columns = {"k": pl.Int64(), "v": pl.Int64(), "ts": TIMES[dtype]}
    second = 1000 if dtype == "ms" else SECOND
    found, letters = run(tmp_path, columns, [[(1, 1, second), (1, 2, moment), (2, 3, moment)], [(1, 4, 2 * second)]], processor)
    alone = processor is Each or abs(moment) * (SECOND // second) >= 1 << 62  # whole batches are refused by keys
    assert [n for _, n in found if n > 0] == ([1, 2] if alone else [1]), "the others are counted"
    assert {k for k, _ in found} == {1}
    contents = {content["v"]: content["ts"] for content in (json.loads(letter["content"]) for letter in letters)}
    assert sorted(contents) == ([2, 3] if alone else [1, 2, 3])
    assert contents[2] == contents[3] == moment, "as a number"
    assert all("year" in letter["reason"] or "ts" in letter["reason"] or "date" in letter["reason"] for letter in letters)


@pytest.mark.parametrize("processor", [Each, Whole])
@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        (pl.Datetime("us"), FAR),
        (pl.Datetime("us", "UTC"), FAR),
        (pl.Datetime("ms"), FAR),
        (pl.Date(), 3_000_000),
        (pl.Duration("ms"), 1 << 61),
        (pl.List(pl.Datetime("us")), [0, FAR]),
        (pl.Struct({"a": pl.Datetime("us")}), {"a": FAR}),
    ],
)
def test_so_is_one_with_such_a_value_in_another_column(tmp_path: Path, processor: Any, dtype: Any, bad: Any) -> None:
    def numbers(of: Any) -> Any:
        return pl.List(pl.Int64()) if isinstance(of, pl.List) else pl.Struct({"a": pl.Int64()}) if isinstance(of, pl.Struct) else pl.Int64()

    good = [0] if isinstance(bad, list) else {"a": 0} if isinstance(bad, dict) else 0
    rows = {"k": [1, 1, 2], "x": [good, bad, good], "ts": [1, 2, 3]}
    frame = pl.DataFrame(rows, schema={"k": pl.Int64(), "x": numbers(dtype), "ts": pl.Int64()})

    typed = frame.with_columns(pl.col("x").cast(dtype), pl.col("ts").cast(pl.Datetime("us")))

    def make(given: pl.DataFrame) -> pl.DataFrame:
        return given.join(typed, on=["k", "ts"])

    flow, out = md.Flow("p"), md.memory()
    script = Script({"k": pl.Int64(), "ts": pl.Datetime("us")}, (((0, ((1, 1), (1, 2), (2, 3))),),))
    made = flow.source("events", script).map_batches(make, schema={"k": pl.Int64(), "ts": pl.Datetime("us"), "x": dtype})
    made.watermark("ts").key_by("k").process(processor, name="p").sink("out", out)
    Local(flow, tmp_path / "store").run()
    assert sorted(out.table().to_pylist(), key=str) == (
        [{"k": 1, "n": 1}, {"k": 2, "n": 1}] if processor is Each else [{"k": 2, "n": 1}]
    ), "whole batches are refused by keys"
    letters = pl.concat([pl.read_parquet(one) for one in (tmp_path / "store" / "dead_letters").glob("*.parquet")])
    contents = [json.loads(content) for content in letters.get_column("content")]
    assert bad in [content["x"] for content in contents]
    assert len(contents) == (1 if processor is Each else 2)


@pytest.mark.parametrize("processor", [Each, Whole])
def test_keys_can_be_such_times(tmp_path: Path, processor: Any) -> None:
    columns = {"k": pl.Datetime("us"), "ts": pl.Datetime("us")}
    found, letters = run(tmp_path, columns, [[(0, 1), (FAR, 2)], [(0, 3), (FAR, 4)]], processor)
    assert len([n for _, n in found if n > 0]) == 2
    assert [json.loads(letter["content"])["k"] for letter in letters] == [FAR, FAR]
    assert all(str(FAR) in letter["position"] for letter in letters)


def test_a_strict_flow_names_the_row(tmp_path: Path) -> None:
    columns = {"k": pl.Int64(), "ts": pl.Datetime("us")}
    with pytest.raises(BadInput, match=r"operator 'p', epoch 1, key 7, row 2: ts is of a year that Python's datetime lacks"):
        run(tmp_path, columns, [[(7, 1), (7, FAR)]], Each, strict=True)


class Endless(md.Processor):
    """Sets timers that are beyond all times."""

    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        ctx.set_timer(timedelta.max if key == 1 else "1s")
        yield (len(rows),)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (-1,)


class EndlessBatch(md.Processor):
    output = {"n": "int64"}

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        at = pl.when(pl.col("k") == 1).then(pl.lit(1 << 62)).otherwise(pl.col("ts").dt.epoch("us") + SECOND).cast(pl.Datetime("us"))
        return rows.select("k", pl.lit(1, pl.Int64).alias("n")), None, rows.select("k", at.alias("time"))

    def on_timers(self, due: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        return due.select("k", pl.lit(-1, pl.Int64).alias("n")), None


@pytest.mark.parametrize("processor", [Endless, EndlessBatch])
def test_a_timer_beyond_all_times_is_a_dead_letter(tmp_path: Path, processor: Any) -> None:
    columns = {"k": pl.Int64(), "ts": pl.Datetime("us")}
    found, letters = run(tmp_path, columns, [[(1, 1), (2, 1)], [(1, 9 * SECOND)]], processor)
    assert found == [(2, -1), (2, 1)]
    assert [json.loads(letter["content"])["k"] for letter in letters] == [1, 1]
    assert all("beyond all times" in letter["reason"] for letter in letters)
