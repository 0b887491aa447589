"""Small splits are folded together, in one call, and nobody can tell from the result: not even from the last bit of a float."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.local import ReadOnly

import meander as md
from meander.clock import SystemClock
from meander.connect.source import Batch
from meander.coordinate.routing import spread
from meander.state.stores.contract import DirStore
from meander.task import stage
from meander.task.messages import Common, Control, SplitTask
from meander.task.operators.aggregate import Aggregation
from meander.task.operators.contract import Intake
from meander.task.physical import Compiled, compile_plan
from meander.task.rows import Rows, together
from meander.task.stage import Outbox, StageTask

SCHEMA = pl.Schema({"key": pl.Int64(), "at": pl.Datetime("us"), "value": pl.Float64(), "word": pl.String()})
SPLITS = 40


@dataclass(frozen=True)
class Seeded(ReadOnly):
    """A source whose splits say how many rows they have."""

    def schema(self) -> pl.Schema:
        return SCHEMA

    def read(self, payload: dict[str, Any]) -> Batch:
        chance, rows = np.random.default_rng(payload["seed"]), payload["rows"]
        numbers = pl.DataFrame(
            {"key": chance.integers(0, 20, rows), "at": chance.integers(0, 10**8, rows), "value": chance.normal(size=rows)}
        )
        words = pl.Series("word", [f"w{n}" if n else None for n in chance.integers(0, 9, rows)], pl.String)
        return Batch(numbers.with_columns(pl.col("at").cast(pl.Datetime("us")), words).cast({"key": pl.Int64}))


def compiled() -> Compiled:
    """Sums of floats over a stream that was divided and united again, so that a split has two pieces, and over windows."""
    flow = md.Flow("sums")
    rows = flow.source("rows", Seeded()).watermark("at", "1m")
    both = rows.filter("value > -1", name="most").union(rows.filter("value < 1", name="also"), name="both")
    numbers = (md.count().alias("n"), md.sum("value").alias("sum"), md.mean("value").alias("mean"), md.max("word").alias("word"))
    both.key_by("key").aggregate(*numbers, md.collect("value").alias("all"), name="keyed").sink("keyed_out", md.memory())
    windows = both.key_by("key").window(md.tumbling("10s"))
    windows.aggregate(md.sum("value").alias("sum"), md.count().alias("n"), emit="update", name="windows").sink("windows_out", md.memory())
    return compile_plan(flow.plan())


def run(program: Compiled, folder: Path, tasks: int) -> dict[str, pl.DataFrame]:
    """One epoch with its splits divided among some tasks, and one slot: what it emits."""
    routing = {name: spread(8, 1) for name in program.keyed}
    store = DirStore(folder)
    common = Common(1, 1, store.url, b"", 8, routing, (tasks, 1))
    # A large one among them, and one without rows.
    splits = [SplitTask(unit, "rows", {"seed": unit, "rows": {7: 9000, 9: 0}.get(unit, 50 + unit)}) for unit in range(SPLITS)]
    box = Outbox()
    for number in range(tasks):
        control = Control(common, 0, number, tuple(splits[number::tasks]))
        StageTask(program, control, store, lambda _: Nothing(), SystemClock()).run_sources(box)
    last = StageTask(program, Control(common, 1, 0, (), {}), store, lambda _: Nothing(), SystemClock())
    last.run_state(box.partials, [], Outbox())
    report = last.finish()
    return {name: pl.read_ipc(store.get(file["name"]) or b"") for name, file in report.staged.items()}


class Nothing:
    """No state yet."""

    def open(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("there is nothing to open")

    scan = expect = open

    def announce(self, lookups: Any) -> None:
        assert not any(refs for refs, _ in lookups)

    def wrote(self, name: str, data: Any) -> None:
        """It is not read again."""


def test_small_splits_together_give_what_they_give_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    before = Aggregation.before

    def counted(self: Aggregation, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        calls.append(rows.frame.height)
        return before(self, rows, side, intake)

    monkeypatch.setattr(Aggregation, "before", counted)
    program = compiled()
    found = [run(program, tmp_path / f"{tasks}", tasks) for tasks in (1, 2, 7)]
    assert len(calls) <= (1 + 2 + 7) * 2 + 3 * 2, "two pieces each, and those of the large one"
    calls.clear()
    monkeypatch.setattr(stage, "_SMALL_SPLIT", -1)
    apart = run(program, tmp_path / "apart", 1)
    assert len(calls) >= 2 * (SPLITS - 1)
    assert apart.keys() == {"keyed_out", "windows_out"}
    for other in found:
        for sink, frame in apart.items():
            assert frame.height > 19
            assert frame.equals(other[sink], null_equal=True), sink


def test_much_is_not_gathered_before_it_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled()
    whole = run(program, tmp_path / "whole", 1)
    monkeypatch.setattr(stage, "_FOLDED_AT_ONCE", 500)
    for sink, frame in run(program, tmp_path / "often", 1).items():
        assert frame.equals(whole[sink], null_equal=True)


def test_pieces_of_a_unit_stay_apart_and_in_their_order() -> None:
    def piece(unit: int, *values: int) -> Rows:
        return Rows(pl.DataFrame({"v": values}), unit)

    first, second = together([piece(3, 1, 2), piece(3, 3), piece(5, 4), piece(5, 5), piece(9, 6)])
    assert (first.frame["v"].to_list(), second.frame["v"].to_list()) == ([1, 2, 4, 6], [3, 5])
    assert first.units is not None
    assert first.units.tolist() == [3, 3, 5, 9]
    odd = Rows(pl.DataFrame({"v": ["another type"]}), 7)
    assert [rows.unit for rows in together([piece(3, 1), odd])] == [3, 7]
    assert [rows.unit for rows in together([piece(3, 1)])] == [3]
