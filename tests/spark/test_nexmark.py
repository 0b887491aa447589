"""Nexmark's flows on real Spark against the oracle, row by row."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import meander as md
from meander import nexmark
from meander.nexmark.checking import check, output, taken_by
from meander.nexmark.queries import FLOWS, build
from meander.nexmark.verify import Trial, verify

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
@pytest.mark.parametrize("query", ["q5", *(pytest.param(query, marks=pytest.mark.long) for query in ("q4", "q9", "q11", "q18", "q20"))])
def test_a_query_that_is_killed_and_rescaled_comes_to_the_same(query: str, tmp_path: Path, spark: Any) -> None:
    trial = Trial(query, 2, 3, killed=True, events=EVENTS, per_epoch=1000, seed=11, event_rate=1000)
    known = nexmark.write_files(tmp_path / "events", EVENTS, seed=11, workload=trial.workload)
    verdict = verify(trial, spark, tmp_path, known)
    assert verdict.difference is None
    assert verdict.killed_at is not None
    assert verdict.rescaled_at is not None
    assert 3 <= verdict.killed_at <= verdict.rescaled_at <= verdict.epochs, "the middle is where it happened"
    assert verdict.rows > 0


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
