"""The benchmark of expiry: what its input is, and one small run of it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from meander.bench.expiry import write_windows
from meander.cli.main import main


def test_every_window_has_the_same_keys_as_often(tmp_path: Path) -> None:
    write_windows(tmp_path / "in", windows=10, events=80, keys=10, seed=0)
    files = sorted((tmp_path / "in").iterdir())
    assert len(files) == 20
    rows = pl.read_parquet(files).with_columns(window=pl.col("ts").dt.truncate("10s"))
    assert rows.get_column("window").n_unique() == 10
    assert set(rows.group_by("window", "key").len().get_column("len")) == {8}
    assert rows.get_column("ts").is_sorted()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_run_of_it_ends_with_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("bench expiry --windows 12 --events 800 --keys 100 --kinds session --json".split()) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["bench"] == "expiry"
    assert found["systems"]["meander"]["session"]["windows_out"] == 12 * 100
    assert found["ratios"]["session state"] < 2
