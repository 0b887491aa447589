"""Joins by arrival whose table is a stream of changes: a row that is gone, or on which an expression fails, is not in the table."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.state import compaction as compaction_module

Row = tuple[int, int, int]
"""Whether it is of the table (1) or asks for a row of it (0), its key, and a value."""
COLUMNS = {"side": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()}
FEW = {
    "an expression that fails": lambda s: s.with_columns(pl.col("total").cast(pl.Int8)),
    "a filter": lambda s: s.filter("total < 128 AND total >= -128").with_columns(pl.col("total").cast(pl.Int8)),
}


def write(epochs: list[list[Row]], between: str) -> tuple[md.Flow, Any]:
    flow, out = md.Flow("f"), md.memory()
    rows = flow.source("in", Script(COLUMNS, tuple(((0, tuple(some)),) for some in epochs)))
    totals = rows.filter("side = 1").key_by("k").aggregate(md.sum("v").alias("total"), name="totals")
    asked = rows.filter("side = 0").join_latest(FEW[between](totals), on="k", how="left", name="asked")
    asked.select("k", "v", "total").sink("out", out)
    return flow, out


@pytest.mark.parametrize("between", FEW)
@pytest.mark.parametrize("cut", [[4], [1, 1, 1, 1], [2, 2], [1, 3]])
def test_what_is_found_does_not_depend_on_the_epochs_in_which_it_came(tmp_path: Path, cut: list[int], between: str) -> None:
    rows = [(1, 1, 3), (1, 2, 5), (1, 1, 300), (1, 2, 2)]
    epochs = [[rows.pop(0) for _ in range(size)] for size in cut]
    flow, out = write([*epochs, [(0, 1, 7), (0, 2, 8)]], between)
    Local(flow, tmp_path).run()
    assert sorted(out.frame().rows()) == [(1, 7, None), (2, 8, 7)]
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "asked")))
    assert state.rows() == [(2, 7)]


@pytest.mark.many
@pytest.mark.parametrize("seed", range(30))
def test_every_row_finds_what_the_table_has_in_its_epoch(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    epochs = [
        [(rng.choice((0, 1, 1)), rng.randint(0, 3), rng.choice((-150, -20, 0, 9, 90, 200))) for _ in range(rng.choice((1, 2, 5)))]
        for _ in range(rng.choice((3, 12)))
    ]
    flow, out = write(epochs, rng.choice(list(FEW)))
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, tmp_path, 2)
        while local.step():
            if rng.random() < 0.3:
                local = Local(flow, tmp_path, rng.choice((1, 2, 3)))
            if rng.random() < 0.3:
                local.loop.reroute("asked", rebalance(local.loop.routing["asked"], rng.randint(1, 3)))
    totals: dict[int, int] = {}
    wanted: list[tuple[int, int, int | None]] = []
    for rows in epochs:
        for side, key, value in rows:
            if side:
                totals[key] = totals.get(key, 0) + value
        for side, key, value in rows:
            total = totals.get(key)
            if not side:
                wanted.append((key, value, total if total is not None and -128 <= total < 128 else None))
    assert sorted(out.frame().rows() if out.frame().width else [], key=repr) == sorted(wanted, key=repr), f"seed {seed}"
