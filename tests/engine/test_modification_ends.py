"""Sources and sinks that are replaced while a flow runs: what is opened, what a restart goes on with, and who is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64()}
SCRIPT = tuple(((0, tuple((key, epoch) for key in range(3))),) for epoch in range(9))


def passing(folder: Path, out: str = "out") -> md.Flow:
    flow = md.Flow("passing")
    flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", md.parquet(folder / out))
    return flow


def published(folder: Path) -> list[int]:
    return sorted({int(file.name.split("-")[1]) for file in folder.glob("part-*.parquet")})


def test_a_sink_that_takes_the_place_of_another_is_opened_first(tmp_path: Path) -> None:
    local = Local(passing(tmp_path), tmp_path / "state")
    local.step()
    trial = local.propose(md.Replace("out", md.parquet(tmp_path / "out2")))
    local.step()
    assert trial.done.result(0).epoch == 2
    assert (published(tmp_path / "out"), published(tmp_path / "out2")) == ([1], [2])


def test_a_sink_that_cannot_be_opened_costs_the_change_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    local = Local(passing(tmp_path), tmp_path / "state")
    local.step()
    trial = local.propose(md.Replace("out", md.parquet(tmp_path / "file" / "out2")))
    local.step()
    with pytest.raises(md.Rejected, match="cannot write there"):
        trial.done.result(0)
    local.run()
    assert (published(tmp_path / "out"), local.manifest.plan["version"]) == ([*range(1, 10)], 1)
