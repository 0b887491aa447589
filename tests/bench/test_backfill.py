"""The benchmark of long spans: what its input is, what is compared, how a run that was ended is told, and one small run of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import meander as md
from meander.bench.backfill import measure, reached
from meander.bench.backfill import ratios as ratios_of
from meander.bench.backfill.check import compare
from meander.bench.backfill.request import OPERATORS, SPANS, BackfillRequest, Record, write_visits
from meander.bench.harness.report import Report
from meander.cli.main import main


def request(folder: Path, operator: str) -> BackfillRequest:
    return BackfillRequest("meander", operator, str(folder / "in"), 3, str(folder / "run"), "local[1]", 1, "1g")


def read(folder: Path, side: str = "all") -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path).with_columns(epoch=pl.lit(int(path.stem))) for path in sorted((folder / side).iterdir())])


@pytest.mark.parametrize("span", ["minute", "year"])
def test_an_epoch_has_as_many_rows_keys_and_windows_whatever_it_spans(tmp_path: Path, span: str) -> None:
    write_visits(tmp_path / "in", SPANS[span], epochs=4, rows=80, seed=0)
    rows = read(tmp_path / "in").filter(pl.col("key") >= 0).with_columns(window=pl.col("ts").dt.truncate("10s"))
    for _, epoch in rows.group_by("epoch"):
        assert (epoch.height, epoch["key"].n_unique(), epoch.select("key", "window").unique().height) == (80, 20, 20)
        assert (epoch["ts"].max() - epoch["ts"].min()).total_seconds() < SPANS[span]
        assert not epoch["ts"].is_sorted()
    first, last = rows.filter(pl.col("epoch") == 0), rows.filter(pl.col("epoch") == 3)
    assert set(first["key"]) == set(last["key"])
    sides = [read(tmp_path / "in", side) for side in ("left", "right")]
    assert pl.concat(sides).sort("seq").equals(read(tmp_path / "in").sort("seq"))
    assert [side.filter(pl.col("key") >= 0).height for side in sides] == [160, 160]


@pytest.mark.many
@pytest.mark.parametrize(("operator", "rows"), list(zip(OPERATORS, (20, 40, 20, 80, 40, 20, 20), strict=True)))
def test_duckdb_finds_as_many_rows_whatever_the_span(tmp_path: Path, operator: str, rows: int) -> None:
    """What came out is empty here: the error says how many rows there should be."""
    for span in ("minute", "year"):
        folder = tmp_path / span
        write_visits(folder / "in", SPANS[span], epochs=3, rows=80, seed=0)
        (folder / "run" / "out").mkdir(parents=True)
        nothing: dict[str, Any] = {
            "key": pl.Int64,
            "id": pl.Int64,
            "seq": pl.Int64,
            "seq_right": pl.Int64,
            "n": pl.Int64,
            "total": pl.Float64,
        }
        times = dict.fromkeys(("window_start", "window_end", "fired"), pl.Datetime("us"))
        pl.DataFrame(schema={**nothing, **times}).write_parquet(folder / "run" / "out" / "1.parquet")
        with pytest.raises(md.Corrupted, match=f"0 rows came out, DuckDB finds {3 * rows};"):
            compare(request(folder, operator))


def test_rows_that_came_out_twice_or_changed_are_found(tmp_path: Path) -> None:
    write_visits(tmp_path / "in", SPANS["day"], epochs=3, rows=80, seed=0)
    right = read(tmp_path / "in").filter(pl.col("key") >= 0).select("key", "id").unique()
    out = tmp_path / "run" / "out"
    out.mkdir(parents=True)
    right.write_parquet(out / "1.parquet")
    assert compare(request(tmp_path, "deduplicate")) == {"rows_out": 60}
    right.head(1).write_parquet(out / "2.parquet")
    with pytest.raises(md.Corrupted, match="61 rows came out, DuckDB finds 60"):
        compare(request(tmp_path, "deduplicate"))
    right.with_columns(pl.col("id") + 1).write_parquet(out / "1.parquet")
    (out / "2.parquet").unlink()
    with pytest.raises(md.Corrupted, match="are missing, and"):
        compare(request(tmp_path, "deduplicate"))


def test_epochs_are_on_record_before_the_run_is_over(tmp_path: Path) -> None:
    record = Record(tmp_path)
    assert record.read() == (None, [])
    record.begin()
    record.add({"end": 5.0, "files": 2})
    with (tmp_path / "epochs.jsonl").open("a") as file:
        file.write('{"end": 6.')  # killed while it wrote
    began, epochs = record.read()
    assert began is not None
    assert epochs == [{"end": 5.0, "files": 2}]


def test_a_run_that_was_ended_is_told_with_what_it_reached() -> None:
    assert reached(100.0, [{"end": 110.0}], 170.0) == {"epochs_reached": 1, "epoch_seconds_at_least": 60.0}
    assert reached(100.0, [{"end": 110.0}, {"end": 112.0}], 170.0) == {"epochs_reached": 2, "epoch_seconds_at_least": 2.0}


def run_of(seconds: float | None, finished: bool = True) -> dict[str, Any]:
    return {"finished": finished, "epoch_seconds" if finished else "epoch_seconds_at_least": seconds}


def test_ratios_say_where_they_are_bounds() -> None:
    results = {
        "meander": {"tumbling": {"minute": run_of(0.5), "day": run_of(1.0), "year": run_of(60.0, finished=False)}},
        "spark-rocksdb": {"tumbling": {"minute": run_of(2.0), "day": run_of(3.0), "year": run_of(3.0)}},
    }
    assert ratios_of(results, ["minute", "day", "year"]) == {
        "tumbling day/minute": 2.0,
        "tumbling year/minute (at least)": 120.0,
        "spark-rocksdb tumbling day/minute": 1.5,
        "spark-rocksdb tumbling year/minute": 1.5,
        "tumbling minute spark-rocksdb": 4.0,
        "tumbling day spark-rocksdb": 3.0,
        "tumbling year spark-rocksdb (at most)": 0.05,
    }


def test_the_warm_up_is_not_measured() -> None:
    epochs = [{"end": end, "files": files, "bytes": 10} for end, files in ((9.0, 99), (10.0, 4), (12.0, 6), (13.0, 5), (20.0, 50))]
    numbers = measure(epochs, 4)
    assert (numbers["epoch_seconds"], numbers["files"], numbers["bytes"]) == (1.0, 5, 10)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_run_that_was_ended_is_drawn(tmp_path: Path) -> None:
    from meander.bench.harness.plot import plot

    config = {"operators": ["tumbling", "as-of"], "spans": ["minute", "year"], "rows": 100}
    seen = {
        "tumbling": {"minute": run_of(0.5), "year": run_of(60.0, finished=False)},
        "as-of": {"minute": run_of(0.5), "year": run_of(1.0)},
    }
    ended = {"tumbling": {"minute": run_of(None, finished=False), "year": run_of(60.0, finished=False)}}
    plot(Report("backfill", config, 1, {"meander": seen, "spark-rocksdb": ended}, {}), str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").stat().st_size > 1000


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_run_of_it_ends_with_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench backfill --rows 80 --epochs 2 --spans minute,hour --operators session,timers --json --timeout 120"
    assert main(words.split()) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["bench"] == "backfill"
    assert found["systems"]["meander"]["timers"]["hour"]["rows_out"] == 3 * 20
    assert found["systems"]["spark-rocksdb"]["session"]["minute"]["rows_out"] == 3 * 20
    assert {"session hour/minute", "timers minute spark-rocksdb"} <= set(found["ratios"])


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_that_hits_its_bound_is_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench backfill --rows 80 --epochs 1 --spans minute --operators tumbling --against= --json --timeout 0.5"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    numbers = json.loads(out.splitlines()[-1])["systems"]["meander"]["tumbling"]["minute"]
    assert (numbers["finished"], numbers["epochs_reached"]) == (False, 0)
    assert "not up" in out
