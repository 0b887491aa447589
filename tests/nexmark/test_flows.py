"""Every query as a flow against the oracle, row by row: the real loop, tasks and store, without Spark."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.local import Local

from meander import nexmark
from meander.clock import SystemClock
from meander.nexmark.checking import check, output, taken_by
from meander.nexmark.queries import FLOWS, build

EVENTS = 12_000
PER_EPOCH = 2_500
# Around seven in the morning, so that q14 meets two kinds of time; 500 events per second, so that there are several windows.
WORKLOAD = nexmark.Workload(base_time=datetime(2015, 7, 15, 6, 59, 50), event_rate=500)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return nexmark.write_files(tmp_path_factory.mktemp("events"), EVENTS, seed=11, workload=WORKLOAD)


def sources(query: str, partitions: int) -> dict[str, Any]:
    return nexmark.sources(FLOWS[query], events=EVENTS, partitions=partitions, seed=11, max_rows_per_epoch=PER_EPOCH, workload=WORKLOAD)


class Clock(SystemClock):
    """Every look at it is four seconds later: epochs are in several windows of processing time."""

    def __init__(self) -> None:
        self.time = 1_436_918_400.0

    def now(self) -> float:
        self.time += 4.0
        return self.time


STATELESS = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")
WAYS = [(query, *way) for query in FLOWS for way in ([(2, True)] if query in STATELESS else [(1, True), (2, False), (4, False)])]


@pytest.mark.many
@pytest.mark.parametrize(("query", "parallelism", "small"), WAYS)
def test_a_query_comes_to_what_the_oracle_says(query: str, parallelism: int, small: bool, tables: Any, tmp_path: Path) -> None:
    given = sources(query, partitions=parallelism)
    flow = build(query, given, output(query, tmp_path / "out"))
    clock = Clock() if query == "q12" else SystemClock()
    local = Local(flow, tmp_path / "state", parallelism, small, clock=clock)
    local.run(flush=True)
    compared(query, local, given, tables, tmp_path)


@pytest.mark.many
@pytest.mark.parametrize("query", ["q4", "q5", "q8", "q12", "q19", "q20"])
def test_a_query_that_is_restarted_with_other_slots_comes_to_the_same(query: str, tables: Any, tmp_path: Path) -> None:
    given, clock = sources(query, partitions=2), Clock()
    for parallelism in (2, 3, 1):
        local = Local(build(query, given, output(query, tmp_path / "out")), tmp_path / "state", parallelism, clock=clock)
        local.step()
        local.step()
    local.run(flush=True)
    compared(query, local, given, tables, tmp_path)


def compared(query: str, local: Local, given: dict[str, Any], tables: dict[str, Path], tmp_path: Path) -> None:
    assert local.manifest.totals.get("dead_letters", 0) == 0
    known: dict[str, Any] = dict(tables)
    if query == "q12":
        known["bid"] = taken_by(tmp_path / "state", "bid", given["bid"])
        assert known["bid"]["p_time"].n_unique() > 3
    rows, difference = check(query, tmp_path / "out", known)
    assert difference is None, str(difference)
    assert rows > 0
