"""A steady input and what is seen of its output: what the benchmarks of changes and of failover go by."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from meander.bench.load.steady import Feed, Sight, account, batch_name, meander_names, saver, visible


def test_a_feed_writes_what_was_due_and_knows_how_much(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in", rate=200, keys=10).start()
    time.sleep(0.5)
    feed.stop()
    rows = pl.read_parquet(tmp_path / "in" / "*.parquet")
    assert rows.height == feed.events
    assert 20 <= rows.height <= 120
    assert rows.get_column("born").is_sorted()
    counted = rows.group_by("key").len().sort("key")
    assert [int(n) for n in feed.counts if n] == counted.get_column("len").to_list()


def test_output_is_seen_when_it_appears_and_a_number_that_is_left_out_does_not_stop_it(tmp_path: Path) -> None:
    sight = Sight(tmp_path, meander_names(2), first=1).start()
    for epoch, slot in ((1, 0), (2, 1), (4, 0)):
        pl.DataFrame({"key": [1], "n": [epoch], "born": [float(epoch)]}).write_parquet(tmp_path / f"part-{epoch:010d}-{slot:04d}.parquet")
        time.sleep(0.05)
    sight.stop()
    assert sorted(sight.seen) == [1, 2, 3, 4]
    assert [(one.rows, one.first) for one in sight.published()] == [(1, 1.0), (1, 2.0), (1, 4.0)]
    assert batch_name(3) == "batch-0000000003.parquet"
    pl.DataFrame({"key": [1], "n": [5], "born": [5.0]}).write_parquet(tmp_path / "part-0000000005-0002.parquet")
    with pytest.raises(RuntimeError, match=r"1 files of the output were not seen .* part-0000000005-0002"):
        sight.published()


def test_what_is_lost_or_there_twice_is_counted(tmp_path: Path) -> None:
    pl.DataFrame({"key": [0, 1, 1], "n": [1, 1, 2]}).write_parquet(tmp_path / "a.parquet")
    counts = np.array([1, 2, 0])
    assert account([tmp_path / "a.parquet"], counts) == {"lost": 0, "doubled": 0}
    assert account([tmp_path / "a.parquet"], counts + 1) == {"lost": 3, "doubled": 0}
    pl.DataFrame({"key": [1, 2], "n": [2, 1]}).write_parquet(tmp_path / "b.parquet")
    assert account([tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "gone.parquet"], counts) == {"lost": 0, "doubled": 2}


def test_a_batch_that_comes_again_is_there_once_and_what_a_dead_writer_left_is_not_counted(tmp_path: Path) -> None:
    asked = []

    class Batch:
        def toArrow(self) -> pa.Table:
            asked.append(self)
            return pa.table({"key": [0], "n": [1]})

    for _ in range(2):
        saver(tmp_path)(Batch(), 3)
    assert len(asked) == 2, "Spark fails a query whose batch nobody looks at"
    assert [file.name for file in tmp_path.iterdir()] == [batch_name(3)]
    pl.DataFrame({"key": [0], "n": [1]}).write_parquet(tmp_path / f".{batch_name(4)}")
    assert account(visible(tmp_path), np.array([1])) == {"lost": 0, "doubled": 0}
