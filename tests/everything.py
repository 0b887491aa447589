"""A flow with every kind of operator, aggregate, window and reader that there is: for tests of what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from tests.local import Script

import meander as md
from meander.plan.operators import SinkOp

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64(), "x": pl.Float64(), "ts": pl.Datetime("us"), "tags": pl.List(pl.String())}
_SECOND = 1_000_000
SCRIPT = tuple(
    (
        (0, tuple((key, epoch + key, key / 4, (10 * epoch + key) * _SECOND, ("a", "b")) for key in range(4))),
        (1, ((epoch % 3, 7, None, (10 * epoch + 3) * _SECOND, ()),)),
    )
    for epoch in range(6)
)
NAMES = pl.DataFrame({"k": [0, 1, 2], "name": ["zero", "one", None]})


class Visits(md.Processor):
    """A variable of every kind, timers, a side output, and settings of its own."""

    output: ClassVar = {"n": "int64"}
    side_outputs: ClassVar = {"odd": {"v": "int64"}}
    count = md.value("int64", default=0, ttl="1h")
    seen = md.list_of("int64")
    last = md.map_of("string", "double")

    def __init__(self, step: int = 1, names: tuple[str, ...] = ("a", "b")) -> None:
        self.step, self.names = step, names
        self.limits = {"most": 1e9, "least": float("-inf")}

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[tuple[int]]:
        state.count += self.step * len(rows)
        for row in rows:
            state.seen.append(row.v)
            state.last[self.names[0]] = 1.5
            if row.v % 2:
                ctx.emit((row.v,), "odd")
        ctx.set_timer("1s")
        yield (state.count,)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> None:
        state.last["fired"] = 2.5


class Both(md.Processor):
    """Of two streams."""

    output: ClassVar = {"n": "int64"}
    count = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> list[tuple[int]]:
        state.count += len(rows)
        return [(state.count,)]

    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> list[tuple[int]]:
        state.count += 100 * len(rows)
        return [(state.count,)]


class Spread(md.Aggregator):
    """A user's own aggregate."""

    inputs = ("v",)

    def init(self) -> dict[str, pl.Expr]:
        return {"low": pl.col("v").min(), "high": pl.col("v").max()}

    def merge(self) -> dict[str, pl.Expr]:
        return {"low": self.state("low").min(), "high": self.state("high").max()}

    def finish(self) -> pl.Expr:
        return self.state("high") - self.state("low")


def twice(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("v") * 2)


def keep(frame: pl.DataFrame, epoch: int) -> None:
    """A function of a sink."""


def everything(folder: Path, own: bool = True) -> md.Flow:
    """``own``: with operators that have code of a user's. ``folder`` is for input and output."""
    (folder / "in").mkdir(parents=True, exist_ok=True)
    flow = md.Flow("everything")
    ends = _Ends(flow, folder)
    raw = flow.source("events", Script(COLUMNS, SCRIPT))
    files = flow.source("files", md.files(folder / "in", "json", {"k": "bigint", "w": pl.Float64()}, max_rows_per_epoch=9, optional=["w"]))
    made = flow.source("made", md.generator("key_value", events=20, keys=3))
    rows = raw.filter("v >= 0 AND k < 100", name="positive").filter(pl.col("x").is_not_nan() | pl.col("x").is_null(), name="numbers")
    rows = rows.with_columns("v + 1 AS more", pl.lit(float("nan")).alias("none"), name="wider", third="v / 3")
    rows = rows.select("k", "v", "x", "ts", "tags", pl.col("more"), name="chosen").drop("more", name="dropped")
    ends(rows.explode("tags", keep_empty=True, name="exploded"))
    ends(rows.rename({"v": "w"}, name="renamed").union(rows.rename({"v": "w"}, name="renamed_too"), name="united"))
    ends(rows.join_static(NAMES, on="k", how="left", name="named"))
    ends(files, md.parquet(folder / "files"))
    ends(made.key_by("key").aggregate(md.count(), name="made_count"), md.discard())
    if own:
        rows = rows.map_batches(twice, name="doubled").map_batches(lambda frame: frame, name="same", deterministic=True)
        ends(rows, md.foreach_batch(keep))
        ends(rows.key_by("k").aggregate(Spread().alias("spread"), md.count(), name="own"))
        visits = rows.key_by("k").process(Visits(2), name="visits")
        ends(visits)
        ends(visits.side("odd", name="odd"))
        ends(rows.key_by("k").connect(files.key_by("k")).process(Both, name="both"))
    _aggregated(rows, ends)
    timed = rows.watermark("ts", grace="1s", idle="1m", max_ahead="1d", name="marked")
    _windowed(timed, ends)
    other = timed.select("k", "v", "ts", name="others")
    ends(timed.join(other, on="k", within="5s", how="full", name="near", where="v < 100"))
    ends(timed.join(other, on="k", within=("-1s", "5s"), how="semi", name="semi"))
    ends(timed.join(other, on="k", name="whenever"))
    ends(timed.join_latest(other, on="k", name="arrived"))
    ends(timed.join_latest(other, on="k", as_of=True, how="left", tolerance="1h", name="as_of"))
    ends(timed.window(md.tumbling("10s")).join(other, on="k", name="same_window"))
    ends(timed.window(md.session("3s")).join(other, on="k", name="same_session"))
    ends(timed.key_by("k", "v").deduplicate(ttl="1h", name="first_in_an_hour"))
    ends(rows.deduplicate("k", "v", name="first"))
    ends(rows.key_by("k").top(2, by=["v", "ts"], descending=[True, False], ties="last", name="best"))
    return flow


def _aggregated(rows: md.Stream, ends: _Ends) -> None:
    totals = rows.key_by("k").aggregate(
        md.count().alias("n"), md.count(where="v > 2").alias("some"), md.sum("v").alias("sum"), md.sum("x * v").alias("product"),
        md.min("v"), md.max("v"), md.mean("x"), md.var("x"), md.std("x"), md.first("v"), md.last("v"), md.count_distinct("v"),
        md.count_distinct("x", approximate=True).alias("about"), md.quantile("x", 0.5), md.top_k("v", 2), md.collect("v"),
        md.sum(pl.col("v").abs()).alias("polars"), name="totals",
    )  # fmt: skip
    ends(totals, md.memory())
    ends(totals.changes(name="told"), md.console(3))
    ends(rows.aggregate(md.count().alias("n"), name="all"))
    newest = rows.key_by("k").latest(order="ts", name="newest")
    ends(newest, md.memory(table=True))
    again = newest.key_by("v").aggregate(
        md.count().alias("n"),
        md.sum("k"),
        md.quantile("x", 0.9),
        md.max("k"),
        md.count_distinct("k"),
        md.top_k("k", 1),
        name="over_changes",
    )
    ends(again)
    plain = newest.select("k", "v", name="plain")
    ends(plain.key_by("v").top(2, by="k", name="best_now"))
    ends(plain.join(totals.select("k", "n", name="counts"), on="k", how="left", name="joined_now"))


def _windowed(timed: md.Stream, ends: _Ends) -> None:
    aggs = (md.count().alias("n"), md.sum("v * 2").alias("s"), md.collect("v"), md.count_distinct("v"))
    per = timed.key_by("k")
    closed = per.window(md.tumbling("10s", offset="1s")).aggregate(*aggs, name="tumbled")
    ends(closed, md.parquet(ends.folder / "parted", partition_by="k"))
    ends(closed.late(name="late"))
    ends(per.window(md.sliding("10s", "5s")).aggregate(*aggs, name="slid", emit="update", lateness="5s"))
    ends(per.window(md.cumulating("1m", "10s")).aggregate(*aggs, name="cumulated"))
    ends(per.window(md.tumbling("10s", time="processing")).aggregate(md.count(), name="by_clock"))
    ends(per.window(md.session("3s")).aggregate(*aggs, md.last("v"), name="sessions"))
    ends(per.window(md.session("CASE WHEN k = 1 THEN 2 ELSE 4 END")).aggregate(md.count(), name="row_sessions"))
    ends(per.window(md.count_window(4, step=2)).aggregate(*aggs, name="counted"))
    ends(per.window(md.tumbling("10s")).top(1, by="v", name="best_of_window"))


class _Ends:
    """Gives every stream that is to end a sink of its own."""

    def __init__(self, flow: md.Flow, folder: Path) -> None:
        self._flow, self.folder, self._count = flow, folder, 0

    def __call__(self, stream: md.Stream, sink: SinkOp | Any = None) -> None:
        self._count += 1
        stream.sink(f"end_{self._count}", sink or md.memory())
