"""What a processor gives that does not fit: one call has not happened, and all others have, whatever came together in an epoch."""

# ruff: noqa: RUF012

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script
from tests.task.test_processor import COLUMNS

import meander as md

SECOND = 1_000_000


def letters(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    frames = [pl.read_parquet(one) for one in sorted((folder / "dead_letters").glob("*.parquet"))]
    rows = pl.concat(frames).select("reason", "content").rows() if frames else []
    return sorted((reason, json.loads(content)) for reason, content in rows)


def run(folder: Path, processor: Any, epochs: Any, parallelism: int = 1) -> list[tuple[Any, ...]]:
    flow, out = md.Flow("p"), md.memory()
    flow.source("events", Script(COLUMNS, tuple(epochs))).watermark("ts").key_by("k").process(processor, name="p").sink("out", out)
    Local(flow, folder, parallelism).run()
    return sorted(pl.DataFrame(pl.from_arrow(out.table())).rows(), key=str)


class Ringing(md.Processor):
    """A timer per row; v says what it gives. With v of 30 and more the call for the rows gives that."""

    output = {"n": "int64"}
    n = md.value("int64", default=0)
    last = md.value("int64")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            ctx.set_timer(row.ts)
            state.last = row.v
            state.n += 1
        yield (ANSWERS.get(state.last - 30, state.n),)
        if state.last == 35:
            state.n = "no number"

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        answer = ANSWERS.get(state.last, -state.n)
        if state.last == 5:
            state.n = "no number"
        else:
            state.n += 100
        yield (answer,)


ANSWERS: dict[int, Any] = {1: "no number", 2: 1 << 70, 3: Decimal("NaN"), 4: object()}


@pytest.mark.many
@pytest.mark.parametrize("v", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("beside", [False, True])
def test_a_timer_whose_answer_does_not_fit_is_a_dead_letter_and_the_rows_beside_it_count(tmp_path: Path, v: int, beside: bool) -> None:
    rows, more = ((1, v, 0), (2, 0, 0)), ((1, 0, 0),)
    found = run(tmp_path, Ringing, [((0, rows),), ((0, ((9, 0, SECOND),)),), *([((0, more),)] if beside else [])])
    assert (1, 1) in found
    assert (2, -1) in found, "others' timers"
    assert ((1, 2) in found) is beside
    told = letters(tmp_path)
    assert len(told) == 1
    reason, content = told[0]
    assert reason.startswith("TypeError: it gave n = " if v < 5 else "TypeError: state.n = 'no number'")
    assert content == {"k": 1, "timer": "1970-01-01 00:00:00", "clock": "event"}


@pytest.mark.parametrize("v", [31, 32, 33, 34, 35])
def test_rows_whose_answer_does_not_fit_leave_the_timer_before_them_as_it_was(tmp_path: Path, v: int) -> None:
    found = run(tmp_path, Ringing, [((0, ((1, 0, 0), (1, 0, 0))),), ((0, ((9, 0, SECOND),)),), ((0, ((1, v, 0),)),), ((0, ((1, 0, 0),)),)])
    assert [n for k, n in found if k == 1] == [-103, -2, 103, 2], "the timer came before the rows, which are none"
    (told,) = letters(tmp_path)
    assert told[1]["v"] == v


class Mixed(md.Processor):
    """A value that fits, of another type than its neighbours."""

    output = {"at": "timestamp", "sum": pl.Decimal(10, 2), "parts": pl.List(pl.Decimal(10, 2))}
    sum = md.value(pl.Decimal(10, 2))
    parts = md.list_of(pl.Decimal(10, 2))
    by = md.map_of("int64", pl.Decimal(10, 2))

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            one = (0, Decimal("1.5"), 2.0, None)[row.v % 4]
            state.sum, state.by[row.v] = one, one
            state.parts.append(one)
            yield (datetime(2026, 1, 1, tzinfo=UTC if row.v == 7 else None), one, list(state.parts))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_value_that_fits_alone_fits_beside_all_others(tmp_path: Path, parallelism: int) -> None:
    rows = [(k, v, 0) for k, v in enumerate((0, 1, 2, 3, 0, 1))]
    together = run(tmp_path / "together", Mixed, [((0, tuple(rows)),)], parallelism)
    apart = run(tmp_path / "apart", Mixed, [((0, (row,)),) for row in rows], parallelism)
    assert together == apart
    assert len(together) == 6
    states = [pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / name, "p"))).sort("k") for name in ("together", "apart")]
    assert states[0].equals(states[1])
    assert letters(tmp_path / "together") == []


def test_a_value_that_does_not_fit_alone_does_not_fit_beside_another(tmp_path: Path) -> None:
    """A time with a zone, where there is none."""
    assert [k for k, *_ in run(tmp_path, Mixed, [((0, ((1, 0, 0), (2, 7, 0), (3, 1, 0))),)])] == [1, 3]
    ((reason, content),) = letters(tmp_path)
    assert reason.startswith("TypeError: it gave at = ")
    assert content["k"] == 2
