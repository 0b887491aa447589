"""A rolling upgrade: replicas of two versions of Polars and Python run one flow, and neither is refused or taken for divergent."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import polars as pl
import pytest
from tests.local import Local, Script
from tests.replicate.test_replicas import COLUMNS, SCRIPT, during_its_run, finish, published

import meander as md
from meander.plan.operators import Filter


class Version(NamedTuple):
    major: int = 3
    minor: int = 99


@contextlib.contextmanager
def upgraded() -> Iterator[None]:
    """This process is one of other versions, whose Polars writes every filter otherwise, and whose hash of rows is another one."""
    canonical = Filter.canonical
    with (
        mock.patch.object(pl, "__version__", "9.9.9"),
        mock.patch.object(sys, "version_info", Version()),
        mock.patch.object(Filter, "canonical", lambda op: canonical(op).replace("BinaryExpr", "Binary")),
        mock.patch.object(pl.DataFrame, "hash_rows", side_effect=AssertionError("it differs from version to version")),
    ):
        yield


class Upgraded:
    """A replica of other versions: whatever it does, it does so."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with upgraded():
            self.local = Local(*arguments, **options)

    @property
    def digest(self) -> str:
        with upgraded():
            return self.local.modifier.plan.digest()

    def step(self, **options: Any) -> bool:
        with upgraded():
            return self.local.step(**options)


def doubled(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(v=pl.col("v") * 2)


def flow_of(out: Path, kept: Any = "v >= 0") -> md.Flow:
    flow = md.Flow("rolling")
    rows = flow.source("events", Script(COLUMNS, SCRIPT)).filter(kept, name="kept").map_batches(doubled, name="doubled")
    rows.key_by("k").aggregate(md.count().alias("n"), md.sum("v").alias("s"), name="totals").sink("out", md.parquet(out / "out"))
    return flow


KEPT = ["v >= 0", pl.col("v") >= 0]


@pytest.mark.parametrize("kept", KEPT, ids=["sql", "polars"])
def test_a_replica_of_another_version_joins_follows_and_publishes(tmp_path: Path, kept: Any) -> None:
    alone = Local(flow_of(tmp_path / "alone", kept), tmp_path / "alone" / "state")
    finish(alone)
    folder = tmp_path / "two"
    a = Local(flow_of(folder, kept), folder / "state", replica="a", ahead=False)
    a.step()
    new = Upgraded(flow_of(folder, kept), folder / "state", replica="b", ahead=False)
    b = new.local
    assert new.digest == a.modifier.plan.digest() == a.manifest.plan["digest"]
    with during_its_run(a, new.step):  # both compute the second epoch, and compare what they have computed
        a.step()
    new.step()
    with during_its_run(b, a.step):
        new.step()
    finish(a)
    while new.step(flush=b.loop.finished()):
        pass
    assert {json.loads(line)["by"] for line in entries(folder)} >= {"a", "b"}
    assert a.manifest.plan == b.manifest.plan
    assert published(folder / "out") == published(tmp_path / "alone" / "out")


def entries(folder: Path) -> list[str]:
    files = [file for file in (folder / "state" / "log").rglob("*") if file.is_file() and b'"by"' in file.read_bytes()]
    return [file.read_text() for file in files if file.read_text().startswith("{")]


@pytest.mark.parametrize("kept", KEPT, ids=["sql", "polars"])
def test_a_change_that_one_version_makes_is_in_force_for_the_other(tmp_path: Path, kept: Any) -> None:
    a = Local(flow_of(tmp_path, kept), tmp_path / "state", replica="a")
    a.step()
    new = Upgraded(flow_of(tmp_path, kept), tmp_path / "state", replica="b")
    b = new.local
    new.step()
    with upgraded():
        trial = b.propose(md.Replace("kept", md.filter(pl.col("k") > 0)))
    new.step()
    assert trial.done.result().version == 2
    a.step()
    new.step()
    assert a.modifier.plan.version == b.modifier.plan.version == 2
    assert a.manifest.plan["digest"] == b.manifest.plan["digest"] == a.modifier.plan.digest() == new.digest
    trial = a.propose(md.Replace("kept", md.filter(pl.col("k") > 1)))
    a.step()
    assert trial.done.result().version == 3
    new.step()
    a.step()
    assert a.modifier.plan.digest() == new.digest == a.manifest.plan["digest"]
    restarted = Upgraded(flow_of(tmp_path, kept), tmp_path / "state", replica="a")
    assert restarted.local.modifier.plan.version == 3
