"""Replicas with a Spark each whose code goes by chance: the first epoch in which they differ is named, and the output stays whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from meander.bench.harness.processes import end_session

FLOW = """
import os, random, time
import polars as pl
import meander as md

SCHEMA = {{"id": pl.Int64(), "kind": pl.String()}}


def noisy(frame):
    if "plain" in frame["kind"]:
        return frame.with_columns(value=pl.lit(0.0))
    time.sleep(float(os.environ["TAKES"]))  # so long that all are at it
    deviates = os.environ["DEVIATES"] == "yes"
    return frame.with_columns(value=pl.lit(random.random() if deviates else 0.5))


flow = md.Flow("chance")
rows = flow.source("rows", md.files({input!r}, schema=SCHEMA, settle=0)).filter("id >= 0", name="kept")
rows = rows.map_batches(noisy, schema={{**SCHEMA, "value": pl.Float64()}}, name="noisy")
rows.sink("all", md.parquet({out!r} + "/all"))
rows.key_by("kind").aggregate(md.count().alias("n"), name="counts").sink("counted", md.parquet({out!r} + "/counted"))
"""


class Replica:
    """One replica's process."""

    def __init__(self, folder: Path, name: str, deviates: bool, takes: float) -> None:
        self.name, self._sign = name, folder / "state" / "replicas"
        self.said = folder / f"{name}.txt"
        words = ["run", str(folder / "flow.py"), "--store", str(folder / "state"), "--replica", name]
        words += ["--master", "local[1]", "--parallelism", "1", "--trigger", "100ms"]
        with self.said.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "meander.cli.main", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "DEVIATES": "yes" if deviates else "no", "TAKES": str(takes)},
            )

    @property
    def epoch(self) -> int:
        """The last one that it has said to have reached."""
        for sign in self._sign.glob(f"*/{self.name}"):
            with contextlib.suppress(ValueError, OSError):  # it is just being written
                return int(json.loads(sign.read_text())["epoch"])
        return 0

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def words(self) -> str:
        return " ".join(self.said.read_text().split())  # a terminal's width is no matter


class Replicated:
    """Replicas on one store, and their input."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.rows = folder, 0
        (folder / "in").mkdir()
        (folder / "flow.py").write_text(FLOW.format(input=str(folder / "in"), out=str(folder / "out")))
        self.live: list[Replica] = []

    def start(self, name: str, deviates: bool, takes: float) -> Replica:
        self.live.append(Replica(self._folder, name, deviates, takes))
        return self.live[-1]

    def feed(self, kind: str) -> int:
        """A file of ten rows, and when it has come out: in which epoch."""
        first, staged = self.rows, self._folder / "in" / ".staged"
        pl.DataFrame({"id": range(first, first + 10), "kind": [kind] * 10}).write_parquet(staged)
        os.replace(staged, self._folder / "in" / f"{first:08d}.parquet")
        self.rows += 10
        self.until(lambda: self.epoch_of(first) is not None, 120)
        return self.epoch_of(first) or 0

    def epoch_of(self, number: int) -> int | None:
        for file in sorted((self._folder / "out" / "all").glob("part-*.parquet")):
            if number in pl.read_parquet(file)["id"]:
                return int(file.name.split("-")[1])
        return None

    def all_are_at(self, epoch: int) -> None:
        self.until(lambda: all(one.epoch >= epoch for one in self.live if not one.has_ended), 180)

    def until(self, holds: Callable[[], Any], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            lost = time.monotonic() > deadline or all(one.has_ended for one in self.live)
            assert not lost, "\n".join(f"{one.name}: {one.said.read_text()[-1500:]}" for one in self.live)
            time.sleep(0.1)

    def check(self) -> None:
        """Each row came out once, and was counted once."""
        everything = pl.read_parquet(self._folder / "out" / "all" / "*.parquet")
        assert everything["id"].sort().to_list() == list(range(self.rows))
        counted = pl.read_parquet(self._folder / "out" / "counted" / "*.parquet").group_by("kind").agg(pl.col("n").max())
        assert dict(counted.rows()) == dict(everything.group_by("kind").len().rows())

    def close(self) -> None:
        for one in self.live:
            end_session(one.process.pid)
            one.process.wait()


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Replicated]:
    made = Replicated(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_two_one_stops_in_the_first_epoch_in_which_they_differ_and_the_other_goes_on(replicated: Replicated) -> None:
    a, b = (replicated.start(name, deviates=True, takes=3.0) for name in "ab")
    for _ in range(2):
        replicated.all_are_at(replicated.feed("plain"))
    epoch = replicated.feed("by chance")
    replicated.until(lambda: a.has_ended or b.has_ended, 60)
    stopped, other = (a, b) if a.has_ended else (b, a)
    assert stopped.process.wait() != 0
    said = stopped.words()
    assert f"replica '{stopped.name}' has computed something else than '{other.name}' in epoch {epoch}: operator 'noisy' gave out" in said
    for kind in ("by chance", "plain"):
        replicated.feed(kind)
    assert not other.has_ended
    replicated.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("takes", "than"), [(2.0, "two others"), pytest.param(6.0, "'[ab]'", marks=pytest.mark.long)], ids=["it is first", "it is last"]
)
def test_of_three_the_one_stops_that_deviates_whoever_is_first(takes: float, than: str, replicated: Replicated) -> None:
    a, b = (replicated.start(name, deviates=False, takes=4.0) for name in "ab")
    c = replicated.start("c", deviates=True, takes=takes)
    for _ in range(2):
        replicated.all_are_at(replicated.feed("plain"))
    epoch = replicated.feed("by chance")
    replicated.until(lambda: c.has_ended, 60)
    assert c.process.wait() != 0
    assert re.search(f"replica 'c' has computed something else than {than} in epoch {epoch}: operator 'noisy' gave out", c.words())
    for kind in ("by chance", "plain"):
        replicated.all_are_at(replicated.feed(kind))
    assert not a.has_ended
    assert not b.has_ended
    replicated.check()
