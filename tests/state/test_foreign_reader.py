"""docs/formats.md is enough to read a store: a reader that knows nothing else comes to what ``md.read_state`` gives."""

from __future__ import annotations

import ast
import json
import random
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script, constants
from tests.state import foreign_reader as foreign
from tests.state.test_hashing import CASES, GOLDEN, SEVERAL

import meander as md
from meander.clock import FakeClock
from meander.state import compaction
from meander.state import log as log_module
from meander.state.log import entry_name

SECOND = 1_000_000
AGGREGATES = {"n": "count", "total": "sum", "mean": "mean", "most": "max", "last": "last"}
WINDOWED = {"n": "count", "least": "min"}


def a_flow(script: Script) -> md.Flow:
    flow = md.Flow("orders")
    orders = flow.source("orders", script).watermark("ts", "3s", name="time")
    made = (md.count().alias("n"), md.sum("v").alias("total"), md.mean("v").alias("mean"), md.max("v").alias("most"))
    orders.key_by("customer", "shop").aggregate(*made, md.last("v").alias("last"), name="totals").sink("totals_out", md.discard())
    windows = orders.key_by("customer").window(md.tumbling("10s"))
    windows.aggregate(md.count().alias("n"), md.min("v").alias("least"), name="windows").sink("windows_out", md.discard())
    return flow


def a_script(rng: random.Random, epochs: int) -> Script:
    def row(epoch: int) -> tuple[Any, ...]:
        at = (4 * epoch + rng.randrange(-2, 4)) * SECOND
        customer = rng.choice(["ada", "bob", "żółw", None, "a customer with a name of more than eight words of eight bytes: " + "x" * 40])
        return customer, rng.randrange(3), rng.choice([None, 1.5, -2.0, 8.25]), at

    columns = {"customer": pl.String(), "shop": pl.Int32(), "v": pl.Float64(), "ts": pl.Datetime("us")}
    return Script(columns, tuple(((0, tuple(row(epoch) for _ in range(rng.randrange(1, 9)))),) for epoch in range(epochs)))


def seen_by_meander(folder: Path, operator: str) -> list[tuple[Any, ...]]:
    found = md.read_state(folder, operator).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def seen_by_a_foreigner(folder: Path, operator: str) -> list[tuple[Any, ...]]:
    manifest = foreign.read_manifest(folder)
    rows = foreign.read_rows(folder, manifest, operator)
    if operator == "totals":
        found = foreign.shown(rows, ["customer", "shop"], AGGREGATES)
        return sorted((tuple(row.values()) for row in found), key=repr)
    windows = foreign.open_windows(manifest, "windows", rows, "time", 10 * SECOND)
    found = foreign.shown(windows, ["customer", "__pane"], WINDOWED)
    times = [(moment(row["__pane"]), moment(row["__pane"] + 10 * SECOND)) for row in found]
    return sorted(
        ((row["customer"], *time, row["n"], row["least"]) for row, time in zip(found, times, strict=True)),
        key=repr,
    )


def moment(micros: int) -> Any:
    return pl.Series([micros], dtype=pl.Datetime("us"))[0]


@pytest.mark.parametrize("seed", range(6))
def test_a_reader_that_knows_the_page_alone_sees_what_meander_sees(tmp_path: Path, seed: int) -> None:
    rng, clock = random.Random(seed), FakeClock(start=1000.0, seed=seed)
    flow = a_flow(a_script(rng, 14))
    with constants(SNAPSHOT_EVERY=(log_module, rng.choice([3, 50])), FEWEST=(compaction, 2)):
        local = Local(flow, tmp_path / "state", clock=clock)
        compared = 0
        while local.step():
            if rng.random() < 0.15:
                local.loop.close()
                local = Local(flow, tmp_path / "state", clock=clock)
            for operator in ("totals", "windows"):
                expected = seen_by_meander(tmp_path / "state", operator)
                assert seen_by_a_foreigner(tmp_path / "state", operator) == expected
                compared += len(expected)
        if seed % 2:
            for _ in local.flush():
                pass
            for operator in ("totals", "windows"):
                assert seen_by_a_foreigner(tmp_path / "state", operator) == seen_by_meander(tmp_path / "state", operator)
    assert compared > 60


def test_that_reader_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    local = Local(a_flow(a_script(random.Random(1), 2)), tmp_path / "state", clock=FakeClock(start=1000.0))
    local.run()
    (tmp_path / "state" / entry_name(1, 3)).write_text(json.dumps({"format": 2, "kind": "epoch", "generation": 1, "position": 3}))
    with pytest.raises(foreign.Refused, match="format 2"):
        foreign.read_manifest(tmp_path / "state")


def test_that_reader_knows_nothing_of_meander() -> None:
    tree = ast.parse(Path(str(foreign.__file__)).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - {"pyarrow"} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ["int8", "int64", "boolean", "float64", "string", "long string", "binary", "null"])
def test_key_hashes_come_to_the_golden_values(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert [f"{foreign.hash_key([value]):016x}" for value in CASES[name]] == golden[name]


@pytest.mark.parametrize("name", SEVERAL)
def test_hashes_of_several_columns_come_to_the_golden_values(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert [f"{foreign.hash_key(list(row)):016x}" for row in SEVERAL[name].rows()] == golden[name]
