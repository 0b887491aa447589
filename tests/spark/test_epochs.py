"""Whole flows on real Spark, in one session: what comes out, and that it does not depend on how it was computed."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import meander as md
from meander.connect import file_discovery


def double_and_drop(frame: pl.DataFrame) -> pl.DataFrame:
    """Row-local, and drops rows: what is left of a key group must stay with its key group."""
    return frame.filter(pl.col("n") % 7 != 3).with_columns(pl.col("total") * 2.0)


def write_floats(folder: Path, files: int, rows: int, keys: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(7)
    for number in range(files):
        frame = pl.DataFrame(
            {
                "key": rng.integers(0, keys, rows),
                "name": pl.Series(rng.integers(0, 50, rows)).cast(pl.String),
                "value": rng.standard_normal(rows) * 10.0 ** rng.integers(-8, 8, rows),
            }
        )
        holes = (
            pl.when(pl.col("key") % 11 == 3).then(None).otherwise("value").alias("holes")
        )  # nulls in some keys, which must not show in others
        frame.with_columns(holes).write_parquet(folder / f"{number:03d}.parquet")
        os.utime(folder / f"{number:03d}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


def wide_flow(folder: Path, other: Path) -> tuple[md.Flow, dict[str, Any]]:
    """Two sources, a union of rows from before and behind a stateful stage, three stateful stages, five sinks."""
    flow = md.Flow("wide")
    left = flow.source("left", md.files(folder, max_files_per_epoch=2))
    right = flow.source("right", md.files(other, max_files_per_epoch=1))
    both = left.union(right, name="both").filter("value <> 0", name="nonzero")
    totals = both.key_by("key").aggregate(
        md.count().alias("n"), md.sum("value").alias("total"), md.mean("value").alias("mean"), md.std("holes").alias("sd"), name="totals"
    )
    changed = totals.map_batches(double_and_drop, name="double", deterministic=True)
    buckets = changed.with_columns("key % 17 AS bucket", name="bucket").key_by("bucket")
    by_bucket = buckets.aggregate(md.sum("n").alias("rows"), md.max("total").alias("most"), md.count().alias("keys"), name="by_bucket")
    renamed = by_bucket.select("bucket AS key", "most AS value", name="renamed")
    mixed = both.select("key", "value", name="narrow").union(renamed, name="mixed")
    grand = (
        mixed.with_columns("key % 3 AS third", name="third")
        .key_by("third")
        .aggregate(md.count().alias("n"), md.min("value").alias("low"), name="grand")
    )
    names = both.key_by("name", "key").aggregate(
        md.count().alias("n"), md.min("value").alias("low"), md.sum("holes").alias("s"), name="names"
    )
    outputs = {name: md.memory() for name in ("totals_out", "bucket_out", "grand_out", "names_out", "rows_out")}
    for stream, name in zip((totals, by_bucket, grand, names, mixed), outputs, strict=True):
        stream.sink(name, outputs[name])
    return flow, outputs


def run_wide(tmp_path: Path, spark: Any, name: str, **options: Any) -> dict[str, pl.DataFrame]:
    flow, outputs = wide_flow(tmp_path / "left", tmp_path / "right")
    with flow.start(tmp_path / name, spark=spark, trigger=None, **options) as run:
        progress = run.process_available()
    assert progress.epochs == 3
    frames = {sink: out.frame() for sink, out in outputs.items()}
    frames.update({op: pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / name, op))) for op in ("totals", "by_bucket", "grand", "names")})
    return {key: frame.sort(frame.columns) for key, frame in frames.items()}


def bits(frame: pl.DataFrame) -> pl.DataFrame:
    """Floats as their bits: equal means equal to the last one."""
    floats = [c for c, t in frame.schema.items() if t == pl.Float64]
    return frame.with_columns(pl.Series(c, frame[c].fill_null(0.0).to_numpy().view(np.uint64)) for c in floats)


@pytest.fixture
def wide_input(tmp_path: Path) -> Path:
    write_floats(tmp_path / "left", files=6, rows=400, keys=150)
    write_floats(tmp_path / "right", files=3, rows=400, keys=150)
    return tmp_path


def test_the_result_is_the_same_to_the_last_bit_at_any_parallelism_and_on_both_paths(wide_input: Path, spark: Any) -> None:
    expected = run_wide(wide_input, spark, "p1", parallelism=1, small_epochs=False)
    assert expected["totals"]["n"].sum() == 9 * 400
    for name, options in {
        "p2": {"parallelism": 2, "small_epochs": False},
        "p4": {"parallelism": 4, "small_epochs": False, "work_ahead": False},
        "s1": {"parallelism": 1, "small_epochs": True},
        "s2": {"parallelism": 2, "small_epochs": True},
        "s4": {"parallelism": 4, "small_epochs": True},
    }.items():
        found = run_wide(wide_input, spark, name, **options)
        for key, frame in expected.items():
            assert_frame_equal(bits(found[key]), bits(frame), check_exact=True)


def test_totals_equal_a_plain_group_by(wide_input: Path, spark: Any) -> None:
    found = run_wide(wide_input, spark, "state")
    rows = pl.concat([pl.read_parquet(p) for folder in ("left", "right") for p in sorted((wide_input / folder).glob("*.parquet"))])
    expected = rows.group_by("key").agg(
        pl.len().cast(pl.Int64).alias("n"),
        pl.col("value").sum().alias("total"),
        pl.col("value").mean().alias("mean"),
        pl.col("holes").std().alias("sd"),
    )
    assert_frame_equal(found["totals"], expected.sort("key"), rel_tol=1e-6, abs_tol=1e-3)
    low = rows.group_by("name", "key").agg(pl.len().cast(pl.Int64).alias("n"), pl.col("value").min().alias("low"))
    found["names"] = found["names"].drop("s")
    assert_frame_equal(found["names"], low.sort("name", "key", "n"))


def test_a_flow_goes_on_after_a_restart_with_another_parallelism(wide_input: Path, spark: Any) -> None:
    expected = run_wide(wide_input, spark, "whole")
    files = sorted((wide_input / "left").glob("*.parquet"))
    later = [(path, path.read_bytes(), path.stat().st_mtime) for path in files[4:]]
    for path, _, _ in later:
        path.unlink()
    flow, _ = wide_flow(wide_input / "left", wide_input / "right")
    with flow.start(wide_input / "parts", spark=spark, trigger=None, parallelism=3) as run:
        run.process_available()
    for path, content, mtime in later:
        path.write_bytes(content)
        os.utime(path, (mtime, mtime))
    flow, _ = wide_flow(wide_input / "left", wide_input / "right")
    with flow.start(wide_input / "parts", spark=spark, trigger=None, parallelism=2) as run:
        run.process_available()
    state = pl.DataFrame(pl.from_arrow(md.read_state(wide_input / "parts", "totals"))).sort("key")
    assert_frame_equal(state.select("key", "n"), expected["totals"].select("key", "n"))


def test_bad_rows_go_to_the_dead_letters_and_the_good_ones_go_on(tmp_path: Path, spark: Any) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [json.dumps({"customer": f"c{i % 3}", "amount": float(i)}) for i in range(30)]
    lines[4] = '{"customer": "c1", "amount": '
    lines[9] = '{"customer": "c1", "amount": "much"}'
    lines[11] = '{"customer": "c1"}'
    (folder / "a.json").write_text("\n".join(lines) + "\n")
    (folder / "empty.json").write_text("")

    def picky(frame: pl.DataFrame) -> pl.DataFrame:
        if (frame["amount"] == 20.0).any():
            raise ValueError("twenty is not a number I like")
        return frame

    def build() -> md.Flow:
        flow = md.Flow("orders")
        orders = flow.source("orders", md.files(folder, format="json", schema={"customer": "string", "amount": "double"}))
        checked = orders.map_batches(picky, name="picky")
        checked.key_by("customer").aggregate(md.count().alias("n"), name="counts").sink("out", md.discard())
        return flow

    with build().start(tmp_path / "state", spark=spark, trigger=None) as run:
        progress = run.process_available()
        assert run.status()["dead_letters"] == 5
    assert progress.dead_letters == 5
    letters = pl.DataFrame(pl.from_arrow(md.read_dead_letters(tmp_path / "state")))
    assert sorted(letters["operator"]) == ["orders"] * 4 + ["picky"]
    assert letters.filter(operator="picky")["reason"].item() == "ValueError: twenty is not a number I like"
    assert letters.filter(operator="picky")["position"].item() == "in/a.json:21", "the line in the file, bad lines counted"
    assert "amount" in letters.filter(pl.col("position").str.contains("a.json:12"))["reason"].item()
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "counts")))
    assert state["n"].sum() == 26
    with pytest.raises(md.BadInput, match=r"orders.*epoch 1"):
        build().start(tmp_path / "strict", spark=spark, trigger=None, strict=True).process_available()


def test_state_of_a_past_epoch_stays_readable_while_retained(tmp_path: Path, spark: Any) -> None:
    write_floats(tmp_path / "in", files=4, rows=100, keys=20)
    flow = md.Flow("past")
    flow.source("events", md.files(tmp_path / "in", max_files_per_epoch=1)).key_by("key").aggregate(
        md.count().alias("n"), name="counts"
    ).sink("out", md.discard())
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        run.process_available()
    for epoch in range(1, 5):
        assert pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "counts", epoch=epoch)))["n"].sum() == 100 * epoch
    with pytest.raises(md.ConfigError, match="no epoch 9"):
        md.read_state(tmp_path / "state", "counts", epoch=9)


def test_a_changed_input_file_is_a_loud_error(tmp_path: Path, spark: Any) -> None:
    write_floats(tmp_path / "in", files=2, rows=100, keys=20)
    flow = md.Flow("changed")
    source = md.files(tmp_path / "in", max_files_per_epoch=1)
    flow.source("events", source).key_by("key").aggregate(md.count().alias("n"), name="counts").sink("out", md.discard())
    run = flow.start(tmp_path / "state", spark=spark, trigger=None, work_ahead=False)
    cursor = run._loop.input.cursors["events"]
    choose = cursor.choose

    def choose_then_touch(now: float, everything: bool) -> Any:
        choice = choose(now, everything)
        for path in (tmp_path / "in").iterdir():
            path.write_bytes(path.read_bytes() + b" ")
        return choice

    cursor.choose = choose_then_touch
    with pytest.raises(md.Corrupted, match=r"000\.parquet"):
        run.process_available()
    run.stop()


def test_a_foreach_batch_that_fails_stops_the_flow_and_gets_the_epoch_again(tmp_path: Path, spark: Any) -> None:
    write_floats(tmp_path / "in", files=3, rows=100, keys=20)
    stored: dict[int, int] = {}
    broken = [True]

    def deliver(frame: pl.DataFrame, epoch: int) -> None:
        if epoch == 2 and broken[0]:
            raise ValueError("the table has other columns")
        stored[epoch] = frame.height

    def build() -> md.Flow:
        flow = md.Flow("deliver")
        events = flow.source("events", md.files(tmp_path / "in", max_files_per_epoch=1))
        events.key_by("key").aggregate(md.count().alias("n"), name="counts").sink("out", md.foreach_batch(deliver))
        return flow

    run = build().start(tmp_path / "state", spark=spark, trigger=None)
    with pytest.raises(ValueError, match="the table has other columns"):
        run.process_available()
    run.stop()
    assert sorted(stored) == [1]
    broken[0] = False
    with build().start(tmp_path / "state", spark=spark, trigger=None) as run:
        run.process_available()
    assert sorted(stored) == [1, 2, 3]


def test_a_store_goes_on_only_with_its_own_flow(tmp_path: Path, spark: Any) -> None:
    write_floats(tmp_path / "in", files=1, rows=100, keys=20)

    def build(key: str, rows: int = 1000) -> md.Flow:
        flow = md.Flow("own")
        events = flow.source("events", md.files(tmp_path / "in")).map_batches(lambda frame: frame.head(rows), name="first")
        events.key_by(key).aggregate(md.count().alias("n"), name="counts").sink("out", md.discard())
        return flow

    with build("key").start(tmp_path / "state", spark=spark, trigger=None) as run:
        run.process_available()
    with pytest.raises(md.ConfigError, match=r"keyed by name, but its stored state by key"):
        build("name").start(tmp_path / "state", spark=spark, trigger=None)
    with pytest.raises(md.ConfigError, match=r"this one differs .*: map_batches 'first' has other Python code\. Start the flow that made"):
        build("key", rows=5).start(tmp_path / "state", spark=spark, trigger=None)
    with build("key").start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.process_available().epochs == 0


def test_a_flow_in_the_background_ends_by_itself_when_its_sources_do(tmp_path: Path, spark: Any) -> None:
    out = md.memory()
    flow = md.Flow("background")
    events = flow.source("events", md.generator("key_value", events=5000, keys=10, max_rows_per_epoch=1000))
    events.key_by("key").aggregate(md.count().alias("n"), name="counts").sink("out", out)
    latency = tmp_path / "latency.txt"
    run = flow.start(tmp_path / "state", spark=spark, latency_file=str(latency))
    assert run.await_termination(timeout=60)
    assert run.process_available().rows_in == 5000
    run.stop()
    assert out.frame().group_by("key").agg(pl.col("n").max())["n"].sum() == 5000
    assert len(latency.read_text().splitlines()) == 5000
    assert run.status()["state"] == "stopped"


def test_a_flow_goes_on_when_its_folders_have_moved(tmp_path: Path, spark: Any) -> None:
    def run(folder: str, out: str) -> md.Progress:
        flow = md.Flow("moved")
        events = flow.source("events", md.files(tmp_path / folder, max_files_per_epoch=1))
        events.key_by("key").aggregate(md.count().alias("n"), name="counts").sink("out", md.parquet(tmp_path / out))
        with flow.start(tmp_path / "state", spark=spark, trigger=None, small_epochs=False) as run:
            return run.process_available()

    def published(out: str) -> set[int]:
        return {int(path.name.split("-")[1]) for path in (tmp_path / out).glob("part-*.parquet")}

    write_floats(tmp_path / "in", files=3, rows=100, keys=20)
    assert run("in", "out").epochs == 3
    (tmp_path / "in").rename(tmp_path / "in2")
    (tmp_path / "out").rename(tmp_path / "out2")
    shutil.copy2(tmp_path / "in2" / "000.parquet", tmp_path / "in2" / "new.parquet")
    assert run("in2", "out2")[:2] == (1, 100)  # and read by workers that know the folder under its old name
    assert published("out2") == {1, 2, 3, 4}
    assert pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "counts")))["n"].sum() == 400
    assert run("in2", "out3").epochs == 0
    assert published("out3") == {4}  # the last one again, and none before it


def finders() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("meander-files-")]


def test_files_are_found_beside_the_epochs_and_the_search_ends_with_the_run(tmp_path: Path, spark: Any) -> None:
    write_floats(tmp_path / "in", files=2, rows=100, keys=20)
    out = md.memory()
    flow = md.Flow("arrivals")
    events = flow.source("events", md.files(tmp_path / "in"))
    events.key_by("key").aggregate(md.count().alias("n"), name="counts").sink("out", out)
    run = flow.start(tmp_path / "state", spark=spark)
    for arrived in range(1, 4):
        shutil.copy2(tmp_path / "in" / "000.parquet", tmp_path / "in" / f"later-{arrived}.parquet")
        deadline = time.monotonic() + 30
        while run.status()["rows_in"] < 100 * (2 + arrived) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert run.status()["rows_in"] == 500
    assert finders() == ["meander-files-in"]
    (tmp_path / "in" / "000.parquet").rename(tmp_path / "in" / "young.parquet")
    os.utime(tmp_path / "in" / "young.parquet")
    assert run.process_available().rows_in == 600  # also what is younger than its settle time
    run.stop()
    assert not finders()


def test_processing_what_is_available_lists_a_folder_once_and_not_once_per_epoch(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_floats(tmp_path / "in", files=4, rows=10, keys=5)
    flow = md.Flow("once")
    events = flow.source("events", md.files(tmp_path / "in", max_files_per_epoch=1))
    events.sink("out", md.discard())
    listings: list[str] = []
    scan = file_discovery.scan
    monkeypatch.setattr(file_discovery, "scan", lambda folder, known: listings.append(folder) or scan(folder, known))
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.process_available().epochs == 4
        assert run.process_available().epochs == 0
    assert len(listings) == 2


def test_a_folder_that_goes_stops_the_flow_and_the_search(tmp_path: Path, spark: Any) -> None:
    write_floats(tmp_path / "in", files=1, rows=100, keys=20)
    flow = md.Flow("gone")
    flow.source("events", md.files(tmp_path / "in")).sink("out", md.discard())
    run = flow.start(tmp_path / "state", spark=spark)
    while run.status()["rows_in"] < 100:
        time.sleep(0.02)
    (tmp_path / "in").rename(tmp_path / "away")
    with pytest.raises(md.Retryable, match="cannot be listed"):
        run.await_termination(timeout=30)
    assert not finders()


def test_a_flow_without_state_needs_no_exchange(tmp_path: Path, spark: Any) -> None:
    flow = md.Flow("stateless")
    events = flow.source("events", md.generator("key_value", events=3000, keys=10))
    events.filter("key < 5", name="low").select("key", "value * 2 AS twice", name="twice").sink("out", md.parquet(tmp_path / "out"))
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        progress = run.process_available()
    rows = pl.read_parquet(tmp_path / "out" / "*.parquet")
    assert (progress.rows_in, progress.rows_out) == (3000, rows.height)
    assert rows["key"].max() == 4
