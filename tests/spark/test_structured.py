"""Flows that Structured Streaming drives, in driver processes that are killed around Spark's own commit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import oracle
from tests.drivers import write_input

import meander as md

Start = Callable[..., Any]


def check(tmp_path: Path, folder: Path) -> None:
    """The decisions name batches, not files: with one file a batch, batch n is the n-th file."""
    files = sorted(folder.iterdir())
    epochs = oracle.decisions(tmp_path / "state")
    assert [entry["batch"]["batch"] for entry in epochs] == list(range(len(files)))
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    oracle.check_fold([pl.read_parquet(path) for path in files], tmp_path / "out", state)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_batches_of_a_killed_driver_are_neither_lost_nor_doubled(tmp_path: Path, child: Start) -> None:
    folder = write_input(tmp_path / "in", files=8, rows=2000, keys=300)
    request = {"store": str(tmp_path / "state"), "in": str(folder), "out": str(tmp_path / "out"), "structured": True}
    for step in (
        ["put_if_absent", 4, "before"],  # before our commit: Spark sends the batch again, and it is computed
        ["put_if_absent", 4, "after"],  # after it and before Spark's: Spark sends it again, and it is skipped
        ["publish", 2, "before"],
        ["publish", 2, "after"],
    ):
        code, _ = child(**request, crash=step).finish()
        assert code == -signal.SIGKILL
    code, answer = child(**request).finish()
    assert code == 0, answer
    check(tmp_path, folder)


def test_a_streaming_dataframe_is_a_source(tmp_path: Path, spark: Any) -> None:
    folder = write_input(tmp_path / "in", files=2, rows=500, keys=50)
    stream = spark.readStream.schema("key long, value double").option("maxFilesPerTrigger", "1").parquet(str(folder))

    def build() -> md.Flow:
        flow = md.Flow("stream")
        totals = (
            flow.source("events", md.spark_stream(stream))
            .key_by("key")
            .aggregate(md.count().alias("n"), md.sum("value").alias("total"), name="totals")
        )
        totals.sink("out", md.parquet(tmp_path / "out"))
        return flow

    with build().start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.process_available().rows_in == 1000
        write_input(tmp_path / "in", files=3, rows=500, keys=50)
        assert run.process_available().rows_in == 500
    with build().start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.process_available().epochs == 0
    check(tmp_path, folder)


def test_a_checkpoint_that_does_not_belong_to_the_store_is_an_error(tmp_path: Path, spark: Any) -> None:
    import shutil

    folder = write_input(tmp_path / "in", files=1, rows=100, keys=5)
    stream = spark.readStream.schema("key long, value double").parquet(str(folder))

    def build() -> md.Flow:
        flow = md.Flow("stream")
        flow.source("events", md.spark_stream(stream)).key_by("key").aggregate(md.count().alias("n"), name="counts").sink(
            "out", md.discard()
        )
        return flow

    with build().start(tmp_path / "state", spark=spark, trigger=None) as run:
        run.process_available()
    shutil.rmtree(tmp_path / "state" / "spark-checkpoint")
    run = build().start(tmp_path / "state", spark=spark, trigger=None)
    with pytest.raises(md.Corrupted, match="belong together"):
        run.process_available()
    run.stop()


def test_a_checkpoint_that_has_lost_its_newest_batch_loses_no_rows_unnoticed(tmp_path: Path, spark: Any) -> None:
    folder = write_input(tmp_path / "in", files=1, rows=100, keys=5)
    stream = spark.readStream.schema("key long, value double").parquet(str(folder))

    def build() -> md.Flow:
        flow = md.Flow("stream")
        flow.source("events", md.spark_stream(stream)).key_by("key").aggregate(md.count().alias("n"), name="counts").sink(
            "out", md.discard()
        )
        return flow

    with build().start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.process_available().rows_in == 100
    checkpoint = tmp_path / "state" / "spark-checkpoint" / "events"
    for lost in ("commits", "offsets", "sources/0"):  # as after a power loss
        for name in ("0", ".0.crc"):
            (checkpoint / lost / name).unlink(missing_ok=True)
    write_input(tmp_path / "in", files=2, rows=100, keys=5)
    run = build().start(tmp_path / "state", spark=spark, trigger=None)
    with pytest.raises(md.Corrupted, match="batch 0 again, with other input"):
        run.process_available()
    run.stop()


def test_a_streaming_dataframe_with_state_of_its_own_is_refused(tmp_path: Path, spark: Any) -> None:
    ticks = spark.readStream.format("rate").load()
    flow = md.Flow("stateful")
    counted = ticks.groupBy("value").count()
    flow.source("ticks", md.spark_stream(counted)).sink("out", md.discard())
    with pytest.raises(md.FlowError, match="Aggregate"):
        flow.start(tmp_path / "state", spark=spark, trigger=None)
    with pytest.raises(md.ConfigError, match="streaming DataFrame"):
        md.spark_stream(spark.range(3))


@pytest.mark.slow
@pytest.mark.long
def test_stopping_finishes_the_batch_that_runs_and_leaves_no_stack_traces(tmp_path: Path) -> None:
    folder = write_input(tmp_path / "in", files=6, rows=100, keys=5)
    command = [sys.executable, str(Path(__file__).with_name("stop_in_a_batch.py")), str(folder), str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["epochs"][-1] == 6
    assert 1 <= found["epochs"][0] < found["epochs"][1] < 6  # each stop came between two batches, before the input was over
    assert (found["rows"], found["counted"]) == (600, 600)
