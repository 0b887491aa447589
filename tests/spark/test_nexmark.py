"""Nexmark's flows on real Spark against the oracle, row by row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import meander as md
from meander import nexmark
from meander.errors import MeanderError
from meander.nexmark.checking import check, output, taken_by
from meander.nexmark.queries import FLOWS, build
from meander.state.log import read_manifest
from meander.state.store import open_store

EVENTS = 20_000
SHARES = {"person": 1, "auction": 3, "bid": 46}
SOME = ("q0", "q6", "q8", "q10", "q11", "q16")
"""The queries that are not left to the long tests; without Spark all of them are tested."""
# Around seven in the morning, so that q14 meets two kinds of time; 1,000 events per second, so that the stream lasts a while.
WORKLOAD = nexmark.Workload(base_time=datetime(2015, 7, 15, 6, 59, 50), event_rate=1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("nexmark")
    nexmark.write_files(place, EVENTS, events_per_file=7000, seed=11, workload=WORKLOAD)
    return place


def compared(query: str, folder: Path, tmp_path: Path, source: Any = None) -> None:
    tables: dict[str, Any] = {entity: folder / entity for entity in nexmark.ENTITIES}
    if query == "q12":
        tables["bid"] = taken_by(tmp_path / "state", "bid", source)
    rows, difference = check(query, tmp_path / "out", tables)
    assert difference is None, str(difference)
    assert rows > 0


@pytest.mark.parametrize("query", [query if query in SOME else pytest.param(query, marks=pytest.mark.long) for query in FLOWS])
def test_a_flow_over_generated_events_comes_to_what_the_oracle_says(query: str, folder: Path, tmp_path: Path, spark: Any) -> None:
    tables = nexmark.sources(FLOWS[query], events=EVENTS, partitions=2, seed=11, max_rows_per_epoch=7000, workload=WORKLOAD)
    flow = build(query, tables, output(query, tmp_path / "out"))
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        progress = run.process_available(flush=True)
    assert (progress.rows_in, progress.dead_letters) == (sum(EVENTS * SHARES[name] // 50 for name in FLOWS[query]), 0)
    compared(query, folder, tmp_path, tables.get("bid"))


@pytest.mark.parametrize("query", ["q21", pytest.param("q8", marks=pytest.mark.long), pytest.param("q20", marks=pytest.mark.long)])
def test_a_flow_over_files_comes_to_the_same(query: str, folder: Path, tmp_path: Path, spark: Any) -> None:
    tables = {entity: md.files(folder / entity, max_files_per_epoch=1) for entity in FLOWS[query]}
    with build(query, tables, output(query, tmp_path / "out")).start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.process_available(flush=True).epochs >= 3
    compared(query, folder, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("query", ["q5", *(pytest.param(query, marks=pytest.mark.long) for query in ("q9", "q11", "q18", "q20"))])
def test_a_query_that_is_killed_and_rescaled_comes_to_the_same(query: str, folder: Path, tmp_path: Path, spark: Any) -> None:
    words = f"nexmark run {query} --events {EVENTS} --events-per-epoch 1000 --event-rate 1000 --seed 11 --parallelism 2".split()
    places = ["--store", str(tmp_path / "state"), "--out", str(tmp_path / "out")]
    child = subprocess.Popen([sys.executable, "-m", "meander.cli.main", *words, *places], start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while _epoch(tmp_path / "state") < 6:
            assert child.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "it does not get on"
            time.sleep(0.05)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    workload = nexmark.Workload(event_rate=1000)
    tables = nexmark.sources(FLOWS[query], events=EVENTS, partitions=2, seed=11, max_rows_per_epoch=1000, workload=workload)
    flow = build(query, tables, output(query, tmp_path / "out"))
    with flow.start(tmp_path / "state", spark=spark, parallelism=2, takeover=True) as run:
        for slots in (4, 1, 3):
            for operator in run.status()["operators"]:
                run.rescale(operator, slots)
        assert run.await_termination("300s")
        assert run.status()["dead_letters"] == 0
    compared(query, folder_of_default_times(tmp_path, workload), tmp_path)


def folder_of_default_times(tmp_path: Path, workload: nexmark.Workload) -> Path:
    nexmark.write_files(tmp_path / "events", EVENTS, seed=11, workload=workload)
    return tmp_path / "events"


def _epoch(store: Path) -> int:
    try:
        return read_manifest(open_store(str(store))).epoch
    except MeanderError:
        return 0


def test_all_events_in_one_stream_can_be_told_apart(folder: Path, tmp_path: Path, spark: Any) -> None:
    flow = md.Flow("apart")
    events = flow.source("events", nexmark.source(events=EVENTS, seed=11, partitions=2, max_rows_per_epoch=7000, workload=WORKLOAD))
    outputs = {entity: md.memory() for entity in nexmark.ENTITIES}
    for entity, out in outputs.items():
        nexmark.only(events, entity).sink(f"{entity}_out", out)
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.process_available().rows_in == EVENTS
    for entity, out in outputs.items():
        difference = nexmark.compare(out.frame(), pl.read_parquet(folder / entity / "*.parquet"))
        assert difference is None, str(difference)
