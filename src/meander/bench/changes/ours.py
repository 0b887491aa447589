"""The measured side of the benchmark of changes: an aggregate and the operators behind it, over all
of the input."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import duckdb
import polars as pl

import meander as md
from meander.bench.harness.statistics import Json
from meander.bench.load.input import Input

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone

BRACKETS = 1_000
"""Keys of the second operator: a key of the first one changes its bracket with nearly every event."""
BEST = 10
KINDS = ("alone", "beside", "sum", "max", "top", "join")
"""The first aggregate alone; with a second one beside it over the same append-only rows; and with one operator behind it."""


@dataclass(frozen=True)
class ChangesRequest:
    """One flow over one input."""

    work: ClassVar[str] = "changes"
    system: str
    kind: str
    input: Input
    folder: str
    master: str
    parallelism: int
    memory: str

    @staticmethod
    def from_json(fields: Json) -> ChangesRequest:
        return ChangesRequest(**{**fields, "input": Input(**fields["input"])})


def build(kind: str, source: Input) -> md.Flow:
    """Whole numbers: a sum of floats cannot be taken back exactly, and is refused over changes."""
    flow = md.Flow("bench")
    files = md.files(source.folder, max_files_per_epoch=source.files_per_epoch)
    events = flow.source("events", files).with_columns((pl.col("value") * 1e6).cast(pl.Int64).alias("cents"), name="cents")
    totals = events.key_by("key").aggregate(md.sum("cents").alias("total"), name="totals")
    if kind in ("alone", "beside"):
        totals.sink("out", md.discard())
    if kind == "alone":
        return flow
    rows = events.with_columns("cents AS total", name="as_total") if kind == "beside" else totals
    if kind == "join":
        counts = events.key_by("key").aggregate(md.count().alias("n"), name="counts")
        second = totals.join(counts, on="key", name="second")
    else:
        bracket = rows.with_columns((pl.col("total") % BRACKETS).alias("bracket"), name="brackets").key_by("bracket")
        if kind == "top":
            second = bracket.top(BEST, by="total", name="second")
        else:
            most = md.max("total").alias("of_all") if kind == "max" else md.sum("total").alias("of_all")
            second = bracket.aggregate(md.count().alias("n"), most, name="second")
    second.sink("second_out", md.discard())
    return flow


def run(request: ChangesRequest, progress: Callable[[int], None]) -> Json:
    """Epoch by epoch: when it ended, and how many rows came out."""
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    epochs: list[Json] = []

    def listen(done: EpochDone) -> None:
        epochs.append({"end": time.monotonic(), "rows_out": done.outcome.counts.get("rows_out", 0)})
        progress(done.epoch)

    store = Path(request.folder) / "store"
    with build(request.kind, request.input).start(store, spark=session, parallelism=request.parallelism, trigger=None) as running:
        running.on_epoch(listen)
        running.process_available()
    session.stop()
    _verify(store, request)
    return {"epochs": epochs}


_EXPECTED = {
    "sum": "SELECT count(*), sum(of_all) FROM (SELECT sum(total) AS of_all FROM totals GROUP BY total % {brackets})",
    "max": "SELECT count(*), sum(of_all) FROM (SELECT max(total) AS of_all FROM totals GROUP BY total % {brackets})",
    "top": "SELECT count(*), sum(total) FROM "
    "(SELECT total, row_number() OVER (PARTITION BY total % {brackets} ORDER BY total DESC) AS place FROM totals) WHERE place <= {best}",
}


def _verify(store: Path, request: ChangesRequest) -> None:
    """The last operator's state is the query over all input, or the measurement does not count. A join's state is its inputs."""
    second = _EXPECTED.get(request.kind)
    state = md.read_state(store, "totals" if second is None else "second")
    column = "total" if "total" in state.column_names else "of_all"
    files = f"{request.input.folder}/*.parquet"
    query = (second or "SELECT count(*), sum(total) FROM totals").format(brackets=BRACKETS, best=BEST)
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW totals AS SELECT key, sum(trunc(value * 1e6)::BIGINT) AS total FROM '{files}' GROUP BY key")
        expected = connection.execute(query).fetchall()
        found = connection.execute(f"SELECT count(*), sum({column}) FROM state").fetchall()
    if found != expected:
        raise md.Corrupted(f"{request.kind}: the state comes to {found}, the input to {expected}")
