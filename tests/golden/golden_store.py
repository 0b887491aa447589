"""The flow of the golden store, how the store is made, and how it goes on. It must stay as it is: the store in version 1 is of this flow.

    python -m tests.golden.golden_store    # writes tests/golden/store-1.tar.xz, unless it is there

The store has every stateful operator; a change that was accepted and one that was rejected; a rescale; dead letters; a source of files and
a stored table; two generations, the second of a replica, with its sign of life; merges, a snapshot, and entries behind it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from tests.local import Local, Script, constants

import meander as md
from meander.clock import FakeClock
from meander.coordinate.routing import rebalance
from meander.plan import tables as plan_tables
from meander.plan.change.modify import Replace
from meander.state import compaction
from meander.state import log as log_module

ROOT = Path(__file__).parents[2]
NEUTRAL = Path("/tmp/golden")
ARCHIVE = Path(__file__).with_name("store-1.tar.xz")
SECOND = 1_000_000
COLUMNS: dict[str, Any] = {"k": pl.Int64(), "g": pl.String(), "v": pl.Int64(), "price": pl.Float64(), "ts": pl.Datetime("us")}
STORED, EPOCHS = 10, 16
"""The epochs that the store has, and those that there are."""
FILES = {"a.json": STORED - 7, "b.json": STORED - 1, "c.json": STORED + 1}
"""Input files, and the epoch before which each comes."""


def rows_of(seed: int) -> Script:
    rng = random.Random(seed)

    def row(epoch: int) -> tuple[Any, ...]:
        at = (3 * epoch + rng.randrange(-2, 3)) * SECOND
        return (
            rng.randrange(4),
            rng.choice(["x", "y", f"e{epoch}", None]),
            rng.randrange(-2, 9) + epoch // 3,
            rng.choice([None, 0.5, 2.25, -1.0]),
            at,
        )

    return Script(COLUMNS, tuple(((0, tuple(row(e) for _ in range(3))), (1, tuple(row(e) for _ in range(2)))) for e in range(EPOCHS)))


class Visits(md.Processor):
    """State of every kind, timers, a time to live, and a side output."""

    output: ClassVar[Any] = {"n": "int64"}
    side_outputs: ClassVar[Any] = {"odd": {"n": "int64"}}
    n = md.value("int64", default=0, ttl="40s")
    names = md.list_of("string")
    sums = md.map_of("string", "int64")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            state.n += 1
            state.names = [*state.names[-2:], row.g or "none"]
            state.sums[row.g or "none"] = state.sums.get(row.g or "none", 0) + row.v
            if row.v == 8:
                ctx.set_timer("5s")
            if state.n % 2:
                ctx.emit((state.n,), "odd")
        yield (state.n,)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (-state.n,)


def shift(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("v") + 1)


def boom(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("a typo")
    return frame


def countries() -> pl.DataFrame:
    return pl.DataFrame({"k": [0, 1, 2, 2], "country": ["de", "fr", "pl", "pl too"]})


def a_flow(outs: dict[str, Any]) -> md.Flow:
    flow = md.Flow("golden")

    def out(stream: Any) -> None:
        outs[stream.name] = md.memory()
        stream.sink(f"{stream.name}_out", outs[stream.name])

    left = flow.source("left", rows_of(1)).filter("v > -3", name="above").map_batches(shift, name="shifted")
    left = left.watermark("ts", "2s", name="time_left")
    right = flow.source("right", rows_of(2)).watermark("ts", "2s", name="time_right")
    files = flow.source("files", replace(md.files(".", format="json", schema={"k": "long", "w": "long"}, settle=0.0), path="in"))
    some = (md.count().alias("n"), md.sum("v").alias("s"))
    ends = (md.first("v").alias("first"), md.last("v").alias("last"))
    sketches = (md.var("price").alias("var"), md.count_distinct("v", approximate=True).alias("about"), md.quantile("v", 0.5).alias("half"))
    values = (md.count_distinct("g").alias("groups"), md.collect("v").alias("all"), md.top_k("v", 2).alias("best"))
    others = (md.mean("price").alias("mean"), md.min("g").alias("least"), md.max("price").alias("most"))
    out(left.key_by("k").aggregate(*some, *ends, *sketches, *values, *others, name="totals"))
    out(left.aggregate(*some, name="whole"))
    first = left.key_by("k").aggregate(*some, name="per_key")
    out(first.key_by("n").aggregate(md.count().alias("c"), md.max("s").alias("m"), md.count_distinct("s").alias("d"), name="brackets"))
    out(first.key_by("n").top(2, by="s", name="ladder"))
    out(first.join(right.key_by("v").aggregate(md.count().alias("c"), name="per_v"), left_on="s", right_on="v", how="full", name="matched"))
    out(left.key_by("k").window(md.tumbling("10s")).aggregate(*some, *ends, lateness="3s", name="tumbling"))
    out(left.key_by("k").window(md.sliding("8s", "4s")).aggregate(*some, emit="update", name="sliding"))
    out(left.window(md.cumulating("12s", "4s")).aggregate(*some, name="cumulating"))
    out(left.key_by("k").window(md.session("3s")).aggregate(*some, *ends, name="sessions"))
    out(left.key_by("k").window(md.count_window(4, 2)).aggregate(*some, name="counted"))
    out(left.key_by("k").window(md.tumbling("10s")).top(2, by="v", name="best_of_windows"))
    out(left.key_by("k", "g").deduplicate(name="unique"))
    out(left.key_by("k", "v").deduplicate(ttl="10s", name="unique_lately"))
    out(left.key_by("g").latest(name="newest"))
    out(left.key_by("k").top(2, by="v", name="best"))
    out(left.key_by("k").process(Visits, name="visits"))
    out(left.key_by("g").connect(right.key_by("g")).process(Both, name="both"))
    out(left.join(right, on="k", within="4s", name="near"))
    out(left.join(right, on="k", within="4s", how="full", name="near_or_alone"))
    out(left.join(right, on="k", within=("-4s", "2s"), how="anti", name="alone"))
    out(left.join(right, on="k", within=("-4s", "2s"), how="semi", name="met"))
    out(left.window(md.tumbling("10s")).join(right, on="k", name="in_windows"))
    out(left.window(md.sliding("8s", "4s")).join(right, on="k", how="full", name="in_sliding"))
    out(left.window(md.session("2s")).join(right, on="k", how="full", name="in_sessions"))
    out(left.join_latest(right.select("k", "ts", pl.col("v").alias("w")), on="k", how="left", name="by_arrival"))
    out(left.join_latest(right.select("k", "ts", pl.col("v").alias("w")), on="k", how="left", as_of=True, name="as_of"))
    out(left.join_static(countries(), on="k", how="left", name="named"))
    out(files.key_by("k").aggregate(md.sum("w").alias("w"), name="filed"))
    return flow


class Both(md.Processor):
    """Of two streams."""

    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        yield (state.n,)

    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += 100 * len(rows)
        yield (state.n,)


@contextlib.contextmanager
def small_constants() -> Iterator[None]:
    """Merges, snapshots and a stored table within few epochs and rows."""
    with constants(SNAPSHOT_EVERY=(log_module, 4), FEWEST=(compaction, 3), _MOST_BYTES=(plan_tables, 1)):
        yield


class Life:
    """The flow in a folder, which is the working directory: paths in the store are relative to it."""

    def __init__(self, replica: str | None = None, clock: Any = None) -> None:
        self.outs: dict[str, Any] = {}
        self.folder = Path("store").absolute()
        self.clock = clock or FakeClock(start=1_750_000_000.0, seed=1)
        self.local = Local(a_flow(self.outs), Path("store"), key_groups=4, clock=self.clock, replica=replica, ahead=False)

    @property
    def epoch(self) -> int:
        return int(self.local.manifest.epoch)

    def step(self, *changes: Any) -> Any:
        """One epoch, in which a change is tried, if there is one; with the file that comes before it. Returns the trial."""
        Path("in").mkdir(exist_ok=True)
        for name, epoch in FILES.items():
            if epoch == self.epoch + 1:
                text = f'{{"k": {len(name) % 3}, "w": {epoch}}}\n{{"k": 1, "w": "no number"}}\n{{"k": 1, "w": {epoch}}}\n'
                Path("in", name).write_text(text)
        trial = self.local.propose(*changes, request_id=f"m{self.epoch}") if changes else None
        before = self.epoch
        self.local.loop.input.look()
        assert self.local.step()
        assert self.epoch == before + 1
        return trial

    def run(self, until: int) -> None:
        while self.epoch < until:
            self.step()

    def finish(self) -> None:
        """The rest of the input, and what is open then."""
        self.run(EPOCHS)
        while self.local.step(flush=True):
            pass

    def close(self) -> None:
        self.local.loop.close()

    def output(self, after: int) -> dict[str, dict[int, list[tuple[Any, ...]]]]:
        """By operator and epoch, the rows that came out."""
        return {
            name: {epoch: sorted(frame.rows(), key=repr) for epoch, frame in out.epochs().items() if epoch > after}
            for name, out in self.outs.items()
        }

    def state(self) -> dict[str, list[tuple[Any, ...]]]:
        return {name: sorted(map(repr, md.read_state(self.folder, name).to_pylist())) for name in self.local.manifest.routing}

    def letters(self) -> list[str]:
        return sorted(map(repr, md.read_dead_letters(self.folder).to_pylist()))


def make() -> None:
    """The store, in the working directory."""
    with small_constants():
        life = Life()
        life.run(3)
        life.step(Replace("above", md.filter("v > -4")))
        life.step(Replace("shifted", md.map_batches(boom)))
        life.close()
        life = Life("a", life.clock)
        life.step()
        for name in ("totals", "tumbling"):
            life.local.loop.reroute(name, rebalance(life.local.loop.routing[name], 3))
        life.run(STORED)
        life.close()
    verdict = Path("store", "modifications", "m4.verdict")
    why = json.loads(verdict.read_text())
    verdict.write_text(json.dumps({**why, "why": why["why"].splitlines()[0]}))  # without the traceback, which has paths of this machine


def pack(store: Path) -> bytes:
    """A folder as an archive with nothing of this machine in it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz", preset=9) as archive:
        for place in sorted(store.rglob("*")):
            if place.is_file() and place.relative_to(store).parts[0] != "lock":
                entry = tarfile.TarInfo(str(place.relative_to(store)))
                entry.size = place.stat().st_size
                with place.open("rb") as file:
                    archive.addfile(entry, file)
    return out.getvalue()


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def machine_paths(folder: Path) -> list[str]:
    """The files that have something of this machine in them."""
    places = (ROOT.resolve(), folder, Path(sys.prefix), Path(sys.base_prefix), Path.home())
    words = [f"{place}/".encode() for place in places if len(place.parts) > 1]
    found = []
    for file in sorted(folder.rglob("*")):
        data = file.read_bytes() if file.is_file() else b""
        code = b"".join(base64.b64decode(text) for text in re.findall(rb'"pickle": ?"([A-Za-z0-9+/=]*)"', data))
        found += [f"{file}: {word.decode()}" for word in words if word in data + code]
    return found


def write() -> None:
    with tempfile.TemporaryDirectory() as folder, inside(Path(folder)):
        make()
        assert not machine_paths(Path(folder)), machine_paths(Path(folder))
        ARCHIVE.write_bytes(pack(Path(folder, "store")))
        print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size} bytes")


def main() -> None:
    """In a process that finds this file under a neutral path, since stored code says which file it is of."""
    assert not ARCHIVE.exists(), f"{ARCHIVE} is there, and stays as it is: a store of a later format is another file beside it"
    NEUTRAL.symlink_to(ROOT)
    try:
        command = [sys.executable, "-P", "-c", "from tests.golden import golden_store; golden_store.write()"]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": f"{NEUTRAL}/src:{NEUTRAL}"}, check=True)
    finally:
        NEUTRAL.unlink()


if __name__ == "__main__":
    main()
