"""The simulated workload: deterministic, of the size that was asked for, and the same however it is cut."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest

import meander as md
from meander.bench.load.source import WorkloadSource
from meander.bench.load.workgen import Writer
from meander.bench.load.workload import SCHEMA, Workload, add_state, build_flow, burn

WORKLOAD = Workload(keys=50, skew=1.1, rate=100.0, payload=13, junk=21, cpu_us=3, partitions=3, seed=7)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_an_event_is_the_same_whatever_piece_it_is_read_in() -> None:
    whole = WORKLOAD.events(1, 0, 100, 1e9)
    assert whole.equals(pl.concat([WORKLOAD.events(1, 0, 37, 1e9), WORKLOAD.events(1, 37, 63, 1e9)]))
    assert whole.schema == SCHEMA
    assert not whole.equals(Workload(keys=50, skew=1.1, rate=100.0, payload=13, junk=21, seed=8, partitions=3).events(1, 0, 100, 1e9))


def test_events_are_due_at_their_rate_over_all_partitions() -> None:
    created = pl.concat([WORKLOAD.events(partition, 0, 4, 0.0) for partition in range(3)]).get_column("created").dt.epoch("ms").sort()
    assert created.to_list() == [10 * n for n in range(12)]


def test_payload_and_junk_have_the_bytes_that_were_asked_for() -> None:
    events = WORKLOAD.events(0, 0, 20, 0.0)
    assert events.get_column("payload").str.len_bytes().unique().to_list() == [13]
    held = add_state(events).select(pl.col("held").bin.size(), pl.col("key"), whole=pl.col("held"))
    assert held.get_column("held").unique().to_list() == [21]
    assert held.n_unique("whole") == held.n_unique("key"), "a key's bytes depend on the key alone"


def test_loading_has_every_key_once() -> None:
    loading = pl.concat([WORKLOAD.loading(0, 30, 0.0), WORKLOAD.loading(30, 20, 0.0)])
    assert loading.get_column("key").to_list() == list(range(50))
    assert loading.get_column("cpu_us").sum() == 0


def test_burning_takes_the_time_that_the_events_say() -> None:
    began = time.thread_time()
    burn(pl.DataFrame({"cpu_us": [10_000, 20_000]}))
    assert 0.03 <= time.thread_time() - began < 0.06


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_the_same_options_write_the_same_files(tmp_path: Path, format: str) -> None:
    for name in ("a", "b"):
        writer = Writer(tmp_path / name, WORKLOAD, format)
        writer.load()
        writer.write(100, per_file=10)
        assert writer.written.events == 150
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    read = pl.read_parquet if format == "parquet" else pl.read_ndjson
    frames = [read(file) for file in sorted((tmp_path / "a").glob("events-*"))]
    assert sum(frame.height for frame in frames) == 100
    assert max(frame.height for frame in frames) == 10


def test_a_live_stream_appears_when_it_is_due(tmp_path: Path) -> None:
    began = time.monotonic()
    Writer(tmp_path, WORKLOAD).write(40, per_file=5, live=True)
    assert time.monotonic() - began >= 0.4
    created = pl.concat([pl.read_parquet(file) for file in tmp_path.glob("events-*")]).get_column("created").dt.epoch("ms")
    assert abs(created.min() / 1000 - time.time()) < 10


def test_a_folder_with_events_is_not_mixed_with_others(tmp_path: Path) -> None:
    Writer(tmp_path, WORKLOAD).write(10, per_file=10)
    with pytest.raises(md.ConfigError, match="has events already"):
        Writer(tmp_path, WORKLOAD)


@pytest.mark.parametrize(("field", "value"), [("keys", 0), ("skew", -1.0), ("rate", 0.0), ("junk", -1), ("partitions", 0)])
def test_a_workload_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(md.ConfigError, match=field):
        Workload(**{field: value})


# -- as a source -----------------------------------------------------------------------------------------------------


def test_the_stream_begins_when_the_loading_is_taken() -> None:
    source = WorkloadSource(WORKLOAD, load_rows=40)
    cursor = source.cursor({}, set())
    loads = [cursor.choose(1000.0 + step, False) for step in range(2)]
    assert [sum(split.rows for split in load.splits) for load in loads if load is not None] == [40, 10]
    assert cursor.choose(2000.0, False) is None
    steady = cursor.choose(2000.5, False)
    assert steady is not None
    assert sum(split.rows for split in steady.splits) == 50
    assert steady.offset == {"loaded": 50, "taken": 50, "began": 2000.0}
    assert min(split.born[0] for split in steady.splits) == 2000.0
    assert max(split.born[1] for split in steady.splits) == pytest.approx(2000.49)
    rows = pl.concat([source.read(split.payload).frame for split in steady.splits])
    assert rows.height == 50
    assert rows.get_column("created").dt.epoch("ms").min() == 2_000_000


def test_a_cursor_goes_on_where_its_offset_says() -> None:
    source = WorkloadSource(WORKLOAD, events=100, paced=False, epoch_rows=60)
    first = source.cursor({}, set())
    choice = first.choose(5.0, True)
    assert choice is not None
    second = source.cursor(choice.offset, set())
    rest = second.choose(9.0, True)
    assert rest is not None
    assert sum(split.rows for split in rest.splits) == 40
    assert second.finished()
    assert second.choose(9.0, True) is None


def test_the_flow_takes_the_workload_with_and_without_state(tmp_path: Path) -> None:
    source = WorkloadSource(WORKLOAD)
    assert "counts" in build_flow(source, md.discard()).explain()
    assert "counts" not in build_flow(source, md.discard(), stateful=False).explain()
