"""Joins on real Spark: the same rows at any parallelism and on both paths, and those that a join at once would give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import meander as md

BOUND = "2s"


def write_streams(folder: Path) -> None:
    """Two streams of one minute, a second out of order, in five files each."""
    rng = np.random.default_rng(11)
    for name, rows in (("orders", 800), ("payments", 600)):
        (folder / name).mkdir()
        at = np.sort(rng.integers(0, 60_000_000, rows) + rng.integers(0, 1_000_000, rows))
        frame = pl.DataFrame({"k": rng.integers(0, 40, rows), "n": np.arange(rows), "ts": pl.Series(rng.permuted(at)).sort()})
        frame = frame.with_columns((pl.col("ts") - pl.Series(rng.integers(0, 1_000_000, rows))).cast(pl.Datetime("us")))
        for number in range(5):
            path = folder / name / f"{number}.parquet"
            frame[number * rows // 5 : (number + 1) * rows // 5].write_parquet(path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run(folder: Path, spark: Any, store: str, **options: Any) -> dict[str, pl.DataFrame]:
    flow, outputs = md.Flow("joins"), {name: md.memory() for name in ("full", "windows", "pairs", "as_of")}
    orders = flow.source("orders", md.files(folder / "orders", max_files_per_epoch=1)).watermark("ts", grace="2s")
    payments = flow.source("payments", md.files(folder / "payments", max_files_per_epoch=1)).watermark("ts", grace="2s")
    orders.join(payments, on="k", within=BOUND, how="full", name="full").sink("full_out", outputs["full"])
    orders.key_by("k").window(md.tumbling("5s")).join(payments, name="windows").sink("windows_out", outputs["windows"])
    orders.join(payments, on="k", name="pairs").sink("pairs_out", outputs["pairs"])
    orders.join_latest(payments, on="k", how="left", as_of=True, name="as_of").sink("as_of_out", outputs["as_of"])
    with flow.start(folder / store, spark=spark, trigger=None, **options) as running:
        assert running.process_available(flush=True).epochs >= 5
    return {name: out.frame().sort(pl.all()) for name, out in outputs.items()}


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    write_streams(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_joins_are_what_a_join_at_once_would_be_at_any_parallelism(streams: Path, spark: Any) -> None:
    found = run(streams, spark, "p1", parallelism=1, small_epochs=False)
    orders, payments = (pl.concat([pl.read_parquet(p) for p in sorted((streams / n).glob("*"))]) for n in ("orders", "payments"))
    pairs = orders.join(payments, on="k", maintain_order="left_right")
    assert_frame_equal(found["pairs"], pairs.sort(pl.all()))
    near = pairs.filter((pl.col("ts") - pl.col("ts_right")).dt.total_microseconds().abs() <= 2_000_000)
    alone = orders.join(near, on="n", how="anti").with_columns(pl.lit(None, pl.Int64).alias("n_right"))
    others = payments.join(near, left_on="n", right_on="n_right", how="anti")
    full = found["full"]
    assert_frame_equal(full.drop_nulls(), near.sort(pl.all()))
    assert sorted(full.filter(pl.col("n_right").is_null()).get_column("n")) == sorted(alone.get_column("n"))
    assert sorted(full.filter(pl.col("n").is_null()).get_column("n_right")) == sorted(others.get_column("n"))
    window = pl.col("ts").dt.truncate("5s") == pl.col("ts_right").dt.truncate("5s")
    assert_frame_equal(found["windows"].drop("window_start", "window_end"), pairs.filter(window).sort(pl.all()))
    as_of = orders.sort("ts").join_asof(payments.sort("ts").with_columns(ts_right="ts"), on="ts", by="k", suffix="_right")
    assert_frame_equal(found["as_of"], as_of.select(found["as_of"].columns).sort(pl.all()))
    for store, options in {"p2": {"parallelism": 2, "small_epochs": False}, "s4": {"parallelism": 4, "small_epochs": True}}.items():
        again = run(streams, spark, store, **options)
        for name, frame in found.items():
            assert_frame_equal(again[name], frame)
