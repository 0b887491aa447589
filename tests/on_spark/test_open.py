"""What is refused before a Spark is started for it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from tests.cli.small_store import make_store
from tests.plan.streams import Nowhere, rows

import meander as md
from meander import testing
from meander.on_spark import opening
from meander.state.stores.contract import Lock, open_store
from meander.testing.jobs import LocalJobs
from meander.worker import Worker


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a Spark was started")

    monkeypatch.setattr(opening, "make_session", started)


def flow(function: Any = None) -> md.Flow:
    made = md.Flow("f")
    stream = made.source("orders", rows())
    if function is not None:
        stream = stream.map_batches(function, name="enrich")
    stream.sink("out", Nowhere())
    return made


def test_a_store_that_is_in_use_is_refused_before_spark_is_waited_for(tmp_path: Path) -> None:
    lock = Lock(make_store(tmp_path / "state", {"ada": (1, 1.0)}), "00000001")
    with pytest.raises(md.Busy, match="takeover=True"):
        flow().start(tmp_path / "state")
    lock.release()


def test_a_store_that_is_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("mine")
    with pytest.raises(md.ConfigError, match="this is a file; a store is a folder"):
        flow().start(tmp_path / "state")


def test_a_function_that_cannot_travel_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()

    def holds_a_lock(frame: pl.DataFrame) -> pl.DataFrame:
        with lock:
            return frame

    with pytest.raises(md.FlowError, match=r"map_batches 'enrich': it cannot be sent to executors \(TypeError: .*lock"):
        flow(holds_a_lock).start(tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("folder", ["in", "out", "parts"])
def test_dead_letters_need_a_folder_that_no_source_reads_and_no_sink_writes(tmp_path: Path, folder: str) -> None:
    (tmp_path / "in").mkdir()
    made = md.Flow("f")
    orders = made.source("orders", md.files(tmp_path / "in", schema={"k": "string", "v": "long"}))
    orders.sink("out", md.parquet(tmp_path / "out"))
    orders.sink("parts", md.parquet(tmp_path / "parts", partition_by="k"))
    (tmp_path / "letters").symlink_to(tmp_path / folder)
    with pytest.raises(md.FlowError, match=r"dead letters go into .*, which (source|sink) '.*' (reads|writes into): give dead_letters="):
        made.start(tmp_path / "state", dead_letters=str(tmp_path / "letters"))
    assert not (tmp_path / "state").exists()


def test_a_start_that_fails_at_its_end_leaves_the_store_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(sparkContext=SimpleNamespace(applicationId="here"))
    monkeypatch.setattr(opening, "make_session", lambda: session)
    monkeypatch.setattr(opening, "SparkJobs", lambda context: LocalJobs(Worker()))
    monkeypatch.setattr(opening, "executors", lambda context: {})
    for name in ("prepare_context", "probe_store"):
        monkeypatch.setattr(opening, name, lambda *_: None)
    monkeypatch.setattr(opening, "is_local", lambda context: True)
    made = md.Flow("f")
    made.source("words", testing.source("word string", [])).sink("out", md.discard())
    with pytest.raises(md.ConfigError, match=r"latency file .* cannot be written") as failed:
        made.start(tmp_path / "state", latency_file=tmp_path / "missing" / "latency.txt")
    assert failed.tb is not None, "what it holds is not let go by the garbage collector"
    Lock(open_store(str(tmp_path / "state")), "00000001").release()
