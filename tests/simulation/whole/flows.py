"""The pool of flows: what a version of a flow is made of, and how it is written down as a user would write it.

A version is plain data. Branches of it are stateful operators (``Branch``), each with a sink of some kind; the models of what they
compute are in ``models``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import polars as pl
from tests.simulation.whole.kinds import CHANGING, MERGING, PROBATION, Kind
from tests.simulation.whole.world import FEEDS, WORLDS, Feed, World

import meander as md


def same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def boom(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("a typo")
    return frame


class Counter(md.Processor):
    """Counts rows; a timer gives the count out again, negative."""

    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            state.n = 0 if row.v == 0 else state.n + 1
            if row.v == 9:
                ctx.set_timer("8s")
        yield (state.n,)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (-1 - state.n,)


class Doubting(Counter):
    """With one variable more."""

    seen = md.value("int64", default=0)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (-1 - state.n,)


class Sided(Counter):
    """With every second count by a side output."""

    side_outputs: ClassVar[Any] = {"odd": {"n": "int64"}}

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in super().on_events(key, rows, state, ctx):
            if row[0] % 2:
                ctx.emit(row, "odd")
            else:
                yield row

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        ctx.emit((-1 - state.n,), "odd")


class SidedDoubting(Sided):
    """With one variable more."""

    seen = md.value("int64", default=0)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (-1 - state.n,)


class Connecting(Counter):
    """Of two streams: the second one doubles the count."""

    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            state.n = 0 if row.v == 0 else 2 * state.n % 97
            if row.v == 9:
                ctx.set_timer("8s")
        yield (100 + state.n,)


class ConnectingDoubting(Connecting):
    """With one variable more."""

    seen = md.value("int64", default=0)


PROCESSORS = {
    "process": {"Counter": Counter, "Doubting": Doubting},
    "sided": {"Counter": Sided, "Doubting": SidedDoubting},
    "connected": {"Counter": Connecting, "Doubting": ConnectingDoubting},
}


@dataclass(frozen=True)
class Place:
    """A sink: its kind, and where it puts what it gets."""

    kind: str
    """memory, parquet, partitioned, foreach"""
    name: str


@dataclass(frozen=True)
class Branch:
    """One stateful operator of the flow and what it is like now."""

    name: str
    kind: str
    """plain, totals, window, session, chain, dedup, process, sided, connected, join, windowjoin, overlapping, cumulated,
    visiting, semi, anti, latest, brackets, ladder, matched, retold, counted, cumulating, stretches"""
    source: str = "a"
    keyed: bool = True
    size: int = 10
    step: int = 10
    emit: str = "closed"
    lateness: int = 0
    aggs: tuple[str, ...] = ("n", "s")
    inner: str = "tumbling"
    """Of a chain: what the first window is."""
    code: str = "Counter"
    late_tap: bool = False

    def window(self) -> Any:
        if self.kind == "counted":
            return md.count_window(self.size, self.step)
        if self.kind == "cumulating":
            return md.cumulating(f"{self.size}s", f"{self.step}s")
        if self.kind == "stretches":
            return md.session("v % 3 + 2")
        if "session" in (self.kind, self.inner if self.kind == "retold" else ""):
            return md.session(f"{self.size}s")
        return md.tumbling(f"{self.size}s") if self.size == self.step else md.sliding(f"{self.size}s", f"{self.step}s")

    def aggregates(self) -> list[Any]:
        made = {"n": md.count(), "s": md.sum("v"), "m": md.max("v")}
        return [made[alias[0]].alias(alias) for alias in self.aggs]

    def processor(self) -> type[md.Processor]:
        return PROCESSORS[self.kind][self.code]

    def operators(self) -> tuple[str, ...]:
        """The names of its stateful operators."""
        two = (f"{self.name}1", self.name)
        three = (f"{self.name}1", f"{self.name}2", self.name)
        return {"plain": (), "chain": two, "brackets": two, "ladder": two, "retold": two, "matched": three}.get(self.kind, (self.name,))


@dataclass(frozen=True)
class Version:
    """A flow at one version."""

    branches: tuple[Branch, ...]
    sinks: tuple[tuple[str, Place], ...]
    sources: tuple[tuple[str, str], ...]
    """Of each source the folder that it reads."""
    above: int = -1
    booms: frozenset[str] = frozenset()
    """Sources behind which a function fails."""
    wide: bool = True
    grace: int = 3
    idle: int | None = None
    """After how many seconds a source or a partition that is silent holds nobody back."""
    shift: int | None = None
    """What an operator that was inserted adds to the values."""
    taps: tuple[tuple[str, Place], ...] = ()
    extras: frozenset[str] = frozenset()
    """Sources that have one column more."""
    thins: frozenset[str] = frozenset()
    """Sources whose values are narrow."""

    def feed(self, source: str) -> Feed:
        return Feed(dict(self.sources)[source], source in self.extras, source in self.thins)

    def place(self, sink: str) -> Place | None:
        return dict((*self.sinks, *self.taps)).get(sink)

    def branch(self, name: str) -> Branch:
        return next(branch for branch in self.branches if branch.name == name)

    def watermark(self) -> tuple[str, str | None]:
        """The grace, and the idle time."""
        return f"{self.grace}s", None if self.idle is None else f"{self.idle}s"

    def with_branch(self, branch: Branch) -> Version:
        return replace(self, branches=tuple(branch if b.name == branch.name else b for b in self.branches))


def narrowing(wide: bool) -> Any:
    return pl.col("k").cast(pl.Int64 if wide else pl.Int32)


def make_sink(world: World, place: Place) -> Any:
    """The live object of a sink."""
    if place.kind == "memory":
        return world.memories.setdefault(place.name, md.memory())
    if place.kind == "foreach":
        return md.foreach_batch(Caller(place.name))
    path = world.folder / place.name
    return md.parquet(path, partition_by="g") if place.kind == "partitioned" else md.parquet(path)


class Caller:
    """A user's function that writes down what it gets. It can travel, as a function in a module can."""

    def __init__(self, name: str) -> None:
        self.name = self.__qualname__ = name

    def __call__(self, frame: pl.DataFrame, epoch: int) -> None:
        (world,) = WORLDS
        world.running.call(f"call {self.name}")
        world.calls[self.name].append((epoch, frame))
        world.running.point()

    def __reduce__(self) -> tuple[type[Caller], tuple[str]]:
        return Caller, (self.name,)


def write(version: Version, world: World) -> md.Flow:
    """The flow as its file would say it."""
    flow = md.Flow("whole")
    streams = {}
    for name, _ in version.sources:
        rows = flow.source(name, version.feed(name))
        if name == "a":
            rows = rows.filter(f"v > {version.above}", name="above")
            if version.shift is not None:
                rows = rows.with_columns(f"v + {version.shift} AS v", name="shift")
            rows = rows.with_columns(narrowing(version.wide), name="narrow")
        rows = rows.map_batches(boom if name in version.booms else same, name=f"clean_{name}")
        streams[name] = rows.watermark("ts", *version.watermark(), name=f"time_{name}")
    for branch in version.branches:
        out = grow(branch, streams)
        out.sink(f"{branch.name}_out", make_sink(world, dict(version.sinks)[f"{branch.name}_out"]))
    for name, place in version.taps:
        streams[name.split("_")[1]].sink(name, make_sink(world, place))
    return flow


def grow(branch: Branch, streams: dict[str, Any]) -> Any:
    """A branch behind its sources: the stream that leaves it."""
    name, rows = branch.name, streams[branch.source]
    if branch.kind == "plain":
        return rows.filter("v >= 0", name=name)
    if branch.kind == "totals":
        return (rows.key_by("k") if branch.keyed else rows).aggregate(*branch.aggregates(), name=name)
    if branch.kind == "counted":
        return rows.key_by("k").window(branch.window()).aggregate(*branch.aggregates(), name=name)
    if branch.kind in ("window", "session", "cumulating", "stretches"):
        cut = (rows.key_by("k") if branch.keyed else rows).window(branch.window())
        ends = [md.first("v").alias("first"), md.last("v").alias("last")] if branch.kind == "session" else []
        return cut.aggregate(*branch.aggregates(), *ends, emit=branch.emit, lateness=f"{branch.lateness}s", name=name)
    if branch.kind == "chain":
        inner = md.tumbling("5s") if branch.inner == "tumbling" else md.session("5s")
        first = rows.key_by("k").window(inner).aggregate(md.count().alias("n"), md.sum("v").alias("v"), name=f"{name}1")
        return first.key_by("k").window(branch.window()).aggregate(md.sum("n").alias("n"), md.sum("v").alias("s"), name=name)
    if branch.kind == "retold":
        some = (md.count().alias("n"), md.sum("v").alias("s"))
        first = rows.key_by("k").window(branch.window()).aggregate(*some, emit=branch.emit, lateness=f"{branch.lateness}s", name=f"{name}1")
        return first.key_by("n").aggregate(md.count().alias("c"), md.sum("s").alias("s"), name=name)
    if branch.kind in ("brackets", "ladder", "matched"):
        first = rows.key_by("k").aggregate(md.count().alias("n"), md.sum("v").alias("s"), name=f"{name}1")
        second = first.filter("s % 3 <> 1", name=f"{name}_some").with_columns("s // 4 AS b", name=f"{name}_b").key_by("b")
        if branch.kind == "matched":
            values = rows.select(pl.col("v").cast(pl.Int64), name=f"{name}_v").key_by("v").aggregate(md.count().alias("c"), name=f"{name}2")
            both = second.stream.join(values, left_on="b", right_on="v", how="full", name=name)
            return both.select("b", "k", "n", "s", "c", name=f"{name}_both").changes(name=f"{name}_log")
        if branch.kind == "ladder":
            return (
                second.top(2, by=["s", "n"], name=name).select("b", "k", "n", "s", "rank", name=f"{name}_ranks").changes(name=f"{name}_log")
            )
        counted = (md.count().alias("c"), md.sum("n").alias("n"), md.max("s").alias("most"), md.count_distinct("n").alias("d"))
        return second.aggregate(*counted, name=name)
    if branch.kind == "dedup":
        return rows.key_by("k", "g").deduplicate(name=name)
    if branch.kind == "process":
        return rows.key_by("k").process(branch.processor(), name=name)
    if branch.kind == "sided":
        some = rows.key_by("k").process(branch.processor(), name=name)
        return some.union(some.side("odd", name=f"{name}_odd"), name=f"{name}_both")
    other = streams["b"]
    if branch.kind == "connected":
        return rows.key_by("k").connect(other.key_by("k")).process(branch.processor(), name=name)
    if branch.kind == "join":
        return rows.join(other, on="k", within="4s", name=name)
    if branch.kind in ("semi", "anti"):
        return rows.join(other, on="k", within=("-4s", "2s"), how=branch.kind, name=name)
    if branch.kind == "windowjoin":
        return rows.window(md.tumbling("10s")).join(other, on="k", name=name)
    if branch.kind == "overlapping":
        return rows.window(md.sliding("8s", "4s")).join(other, on="k", how="full", name=name)
    if branch.kind == "cumulated":
        return rows.window(md.cumulating("12s", "4s")).join(other, on="k", how="anti", name=name)
    if branch.kind == "visiting":
        return rows.window(md.session("3s")).join(other, on="k", how="full", name=name)
    return rows.join_latest(other, on="k", how="left", name=name)


def draw(rng: random.Random, about: Kind) -> Version:
    """A first version, for a schedule of this kind."""
    names = ["a"]
    branches: list[Branch] = []
    kinds = [
        "plain",
        "totals",
        "totals",
        "window",
        "window",
        "window",
        "session",
        "chain",
        "dedup",
        "process",
        "sided",
        "connected",
        "join",
        "windowjoin",
        "semi",
        "anti",
        "latest",
    ]
    if about is MERGING and rng.random() < 0.8:
        kinds = ["totals", "totals", "totals", "process", "sided", "latest"]  # what is never dropped
    kinds = list(about.pool) or kinds
    for number in range(1 if about is MERGING else rng.choice((1, 1, 1, 2, 2))):
        kind = rng.choice(kinds)
        branch = Branch(f"b{number}", kind)
        if kind in ("connected", "join", "windowjoin", "overlapping", "cumulated", "visiting", "semi", "anti", "latest"):
            names = ["a", "b"]
        if kind == "window":
            size, step = rng.choice(((10, 5), (8, 2), (6, 2)) if about is PROBATION else ((10, 10), (10, 5), (8, 2), (4, 4), (6, 3)))
            branch = replace(branch, size=size, step=step, keyed=rng.random() < 0.6, emit=rng.choice(("closed", "closed", "update")))
            branch = replace(branch, lateness=rng.choice((0, 0, 0, 5)))
        elif kind == "session":
            branch = replace(branch, size=rng.choice((3, 6)), emit=rng.choice(("closed", "update")))
        elif kind == "counted":
            size, step = rng.choice(((1, 1), (3, 3), (4, 2), (6, 1)))
            branch = replace(branch, size=size, step=step)
        elif kind == "cumulating":
            size, step = rng.choice(((10, 5), (8, 2), (6, 6)))
            branch = replace(branch, size=size, step=step, keyed=rng.random() < 0.6, emit=rng.choice(("closed", "closed", "update")))
            branch = replace(branch, lateness=rng.choice((0, 0, 0, 5)))
        elif kind == "stretches":
            branch = replace(branch, emit=rng.choice(("closed", "update")))
        elif kind == "chain":
            size = rng.choice((10, 4, 2))
            branch = replace(branch, size=size, step=size)
        elif kind == "retold":
            size, step = rng.choice(((10, 10), (10, 5), (6, 2)))
            emit, lateness = rng.choice((("update", 0), ("update", 5), ("closed", 5)))
            branch = replace(branch, size=size, step=step, emit=emit, lateness=lateness)
            if rng.random() < 0.4:
                branch = replace(branch, inner="session", size=rng.choice((3, 6)), emit="update", lateness=0)
        branches.append(branch)
    if "b" not in names and about is not MERGING and (about is PROBATION or rng.random() < 0.25):
        names.append("b")
        branches.append(Branch("side", rng.choice(("plain", "window", "totals")), source="b"))
    folders = {name: f"{name}-{rng.choice(('in', 'log'))}" for name in names}
    for folder in folders.values():
        FEEDS[folder] = []
        FEEDS[f"{folder}2"] = []
    sinks = tuple((f"{b.name}_out", draw_place(rng, b)) for b in branches)
    return Version(
        tuple(branches),
        sinks,
        tuple(folders.items()),
        wide=about is CHANGING or "b" in names or rng.random() < 0.5,
        grace=rng.choice((0, 3, 5)),
        thins=frozenset(name for name in names if rng.random() < 0.3),
    )


def draw_place(rng: random.Random, branch: Branch | None, number: int = 0) -> Place:
    kinds = ["memory", "parquet", "parquet", "foreach"]
    if branch is None or branch.kind in ("plain", "dedup"):
        kinds.append("partitioned")
    name = branch.name if branch is not None else "tap"
    if number:
        kinds.remove("memory")  # after a restart nobody would have the object that came by a change
    kind = rng.choice(kinds)
    return Place(kind, f"out/{name}-{kind}-{number}")
