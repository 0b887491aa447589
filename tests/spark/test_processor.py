"""A processor on real Spark: both forms, timers, and other slots and another process in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest

import meander as md

BEGIN = datetime(2026, 1, 1)
PAUSE = timedelta(seconds=5)
OUTPUT = {"n": "int64", "total": "int64", "until": "timestamp"}
EPOCHS, KEYS = 12, 40


class Visits(md.Processor):
    """A visit ends when nothing has come for five seconds."""

    output: ClassVar[Any] = OUTPUT
    values = md.list_of("int64")
    until = md.value("timestamp")

    def on_events(self, key: int, rows: Any, state: Any, ctx: Any) -> Iterator[Any]:
        for row in rows:
            if state.until is not None and row.ts >= state.until:
                yield len(state.values), sum(state.values), state.until
                state.values.clear()
            state.values.append(row.v)
            state.until = row.ts + PAUSE
        ctx.set_timer(state.until)

    def on_timer(self, key: int, time: datetime, state: Any, ctx: Any) -> Any:
        if state.until != time:
            return None
        found = len(state.values), sum(state.values), state.until
        state.clear()
        return found


class Totals(md.Processor):
    """All keys at once."""

    output: ClassVar[Any] = {"total": "int64"}
    total = md.value("int64", default=0)

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
        sums = state.select("k", "total").join(rows.group_by("k").agg(pl.col("v").sum()), on="k", how="left", maintain_order="left")
        total = sums.get_column("total") + sums.get_column("v").fill_null(0)
        return sums.select("k").with_columns(total.alias("total")), state.with_columns(total.alias("total"))


def events() -> pl.DataFrame:
    """Keys come in bursts: every third epoch a key has rows, and longer pauses after some."""
    rows = [
        (key, epoch * 100 + key, BEGIN + timedelta(seconds=epoch * 2 + key / KEYS))
        for epoch in range(EPOCHS)
        for key in range(KEYS)
        if key % 3 != epoch % 3 and not (key % 5 == 0 and 4 <= epoch <= 7)
    ]
    return pl.DataFrame(rows, schema={"k": pl.Int64, "v": pl.Int64, "ts": pl.Datetime("us")}, orient="row")


def expected(rows: pl.DataFrame) -> list[tuple[int, int, int, datetime]]:
    """Visits in plain Python."""
    found = []
    for (key,), mine in rows.sort("ts").group_by(["k"], maintain_order=True):
        visit: list[tuple[int, datetime]] = []
        for value, at in mine.select("v", "ts").rows():
            if visit and at >= visit[-1][1] + PAUSE:
                found.append((key, len(visit), sum(v for v, _ in visit), visit[-1][1] + PAUSE))
                visit = []
            visit.append((value, at))
        found.append((key, len(visit), sum(v for v, _ in visit), visit[-1][1] + PAUSE))
    return sorted(found)


@pytest.mark.parametrize(("slots", "later"), [(1, 3), (2, 1)])
def test_a_processor_goes_on_with_other_slots_and_in_another_run(slots: int, later: int, tmp_path: Path, spark: Any) -> None:
    rows = events()
    (tmp_path / "in").mkdir()

    def write(epochs: range) -> None:
        for epoch in epochs:
            mine = rows.filter((pl.col("ts") - BEGIN).dt.total_microseconds() // 2_000_000 == epoch)
            mine.write_parquet(tmp_path / "in" / f"{epoch:03}.parquet")

    def build() -> md.Flow:
        flow = md.Flow("visits")
        source = flow.source("events", md.files(tmp_path / "in", max_files_per_epoch=1, schema=rows.schema)).watermark("ts", grace="0s")
        source.key_by("k").process(Visits, name="visits").sink("out", md.parquet(tmp_path / "out"))
        source.key_by("k").process(Totals, name="totals").sink("totals_out", md.parquet(tmp_path / "totals"))
        return flow

    write(range(5))
    with build().start(tmp_path / "state", spark=spark, parallelism=slots, trigger=None) as run:
        run.process_available()
        run.rescale("visits", later)
        run.rescale("totals", later)
        write(range(5, 8))
        run.process_available()
    write(range(8, EPOCHS))
    with build().start(tmp_path / "state", spark=spark, parallelism=slots, trigger=None) as run:
        assert run.process_available(flush=True).dead_letters == 0
    assert sorted(pl.read_parquet(tmp_path / "out" / "*.parquet").rows()) == expected(rows)
    assert md.read_state(tmp_path / "state", "visits").num_rows == 0
    totals = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals"))).sort("k")
    assert totals.rows() == rows.group_by("k").agg(pl.col("v").sum()).sort("k").rows()
