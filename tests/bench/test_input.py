"""The benchmarks' input: the same for everyone, and known to the last event."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from meander.bench.load.input import Phase, write_input


def test_input_knows_what_a_correct_count_and_sum_come_to(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", [Phase(3, 3000, 100)])
    rows = pl.read_parquet(tmp_path / "in" / "*.parquet")
    assert (source.events, source.keys) == (rows.height, rows["key"].n_unique()) == (3000, 100)
    assert source.total == pytest.approx(rows["value"].sum())
    assert rows.schema == {"key": pl.Int64, "value": pl.Float64}


def test_the_same_seed_writes_the_same_files_and_another_one_others(tmp_path: Path) -> None:
    phases = [Phase(2, 1000, 50, skew=1.1)]
    once, again, other = (write_input(tmp_path / name, phases, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert (once.total, once.keys) == (again.total, again.keys)
    assert once.total != other.total
    for file in (tmp_path / "a").iterdir():
        assert pl.read_parquet(file).equals(pl.read_parquet(tmp_path / "b" / file.name))


def test_files_are_taken_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", [Phase(1, 1000, 10), Phase(4, 40, 10)], files_per_epoch=2)
    files = sorted((tmp_path / "in").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert [file.name for file in files] == sorted(file.name for file in files)
    assert [pl.read_parquet(file).height for file in files] == [500, 500, 5, 5, 5, 5, 5, 5, 5, 5]
    assert source.epochs == 5


def test_loading_brings_every_key_once(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", [Phase(3, 1001, 1001, once=True)])
    keys = pl.read_parquet(tmp_path / "in" / "*.parquet")["key"]
    assert sorted(keys.to_list()) == list(range(1001))
    assert (source.events, source.keys) == (1001, 1001)


def test_skew_makes_the_first_keys_the_frequent_ones(tmp_path: Path) -> None:
    write_input(tmp_path / "in", [Phase(1, 20_000, 1000, skew=1.2)])
    counts = pl.read_parquet(tmp_path / "in" / "*.parquet")["key"].value_counts(sort=True)
    assert counts["key"][0] == 0
    assert counts["count"][0] > 20_000 * 0.15
