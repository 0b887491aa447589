"""Nexmark's flows on real Spark against the oracle, row by row."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import meander as md
from meander import nexmark
from meander.nexmark.answers import ANSWERS
from meander.nexmark.queries import FLOWS, build

EVENTS = 20_000
# Around seven in the morning, so that q14 meets two kinds of time; 1,000 events per second, so that the stream lasts a while.
WORKLOAD = nexmark.Workload(base_time=datetime(2015, 7, 15, 6, 59, 50), event_rate=1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("nexmark")
    nexmark.write_files(place, EVENTS, events_per_file=7000, seed=11, workload=WORKLOAD)
    return place


def check(query: str, flow: md.Flow, out: Any, folder: Path, store: Path, spark: Any, rows_in: int) -> None:
    with flow.start(store, spark=spark, trigger=None) as run:
        progress = run.process_available()
    assert (progress.epochs, progress.rows_in) == (3, rows_in)
    expected = nexmark.answer(query, folder)
    assert expected.num_rows > 0
    difference = nexmark.compare(nexmark.latest(out.frame(), ANSWERS[query].key), expected)
    assert difference is None, str(difference)


@pytest.mark.parametrize("query", FLOWS)
def test_a_flow_over_generated_events_comes_to_what_the_oracle_says(query: str, folder: Path, tmp_path: Path, spark: Any) -> None:
    tables = nexmark.sources(FLOWS[query], events=EVENTS, partitions=2, seed=11, max_rows_per_epoch=7000, workload=WORKLOAD)
    out = md.memory()
    check(query, build(query, tables, out), out, folder, tmp_path / "state", spark, rows_in=EVENTS * 46 // 50)


def test_a_flow_over_files_comes_to_the_same(folder: Path, tmp_path: Path, spark: Any) -> None:
    out = md.memory()
    tables = {"bid": md.files(folder / "bid", max_files_per_epoch=1)}
    check("q21", build("q21", tables, out), out, folder, tmp_path / "state", spark, rows_in=EVENTS * 46 // 50)


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
