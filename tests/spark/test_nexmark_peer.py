"""The peer of Nexmark's benchmark computes the same queries as the oracle, as far as its windows have closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from meander import nexmark
from meander.bench.nexmark.peer import QUERIES, UPDATING, define

EVENTS = 15_000
WORKLOAD = nexmark.Workload(event_rate=500)
CLOSING = ("q5", "q7", "q8", "q9", "q11")
"""Their last windows stay open where nobody flushes."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return nexmark.write_files(tmp_path_factory.mktemp("events"), EVENTS, events_per_file=8_000, seed=5, workload=WORKLOAD)


@pytest.fixture
def utc(spark: Any) -> Iterator[Any]:
    before = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")}
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.long
@pytest.mark.parametrize("query", [query for query in QUERIES if query != "q12"])
def test_the_peer_computes_the_same_query(query: str, tables: dict[str, Path], utc: Any) -> None:
    # All files in one batch, so that every key of an updating query comes once.
    frame = define(utc, query, {name: str(place) for name, place in tables.items()}, files_per_epoch=100)
    mode = "update" if query in UPDATING else "append"
    running = frame.writeStream.outputMode(mode).format("memory").queryName(f"peer_{query}").trigger(availableNow=True).start()
    try:
        running.awaitTermination()
        found = pl.DataFrame(pl.from_arrow(utc.table(f"peer_{query}").toArrow()))
    finally:
        running.stop()
    difference = nexmark.compare(found, nexmark.answer(query, dict(tables)))
    if query in CLOSING:
        assert found.height > 0
        assert difference is None or (difference.surplus, difference.unequal) == (0, 0), str(difference)
    else:
        assert difference is None, str(difference)
