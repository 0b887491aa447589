"""Flows of windows that come again and of what follows on them, each beside the query whose answer its table must be. Drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from tests.local import Local, Script, constants
from tests.task import changing
from tests.task.changing import Step, whole

import meander as md
from meander.coordinate.routing import rebalance
from meander.state import compaction as compaction_module

SECOND = 1_000_000
COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "id": pl.Int64(), "ts": pl.Datetime("us")}
Row = tuple[int | None, int | None, int, int]
DISORDER = 12
"""Seconds by which a row can come after a newer one."""

Grow = Callable[["Stream", str, "Spec"], md.Stream]
Stream = md.Stream


class Spec:
    """When windows come: the lateness and the grace make up for the disorder together, so that no row is late."""

    def __init__(self, rng: random.Random) -> None:
        self.emit = rng.choice(("update", "update", "closed"))
        self.lateness = rng.choice((0, 5, DISORDER)) if self.emit == "update" else rng.choice((5, DISORDER, 20))
        self.grace = max(0, DISORDER - self.lateness)
        self.keyed = rng.random() < 0.8

    def aggregate(self, stream: Stream, window: Any, name: str, *aggs: Any) -> Stream:
        cut = (stream.key_by("k") if self.keyed else stream).window(window)
        made = cut.aggregate(*aggs, emit=self.emit, lateness=self.lateness, name=name)
        made = made if self.keyed else made.with_columns(pl.lit(None, pl.Int64).alias("k"), name=f"{name}_k")
        return made.with_columns(pl.col("n") + seconds("window_end") * 100, name=f"{name}_n") if self.lateness == 5 else made

    def query(self, text: str) -> str:
        """Of windows as ``k, a, n, ws, we``."""
        text = text if self.keyed else text.replace("{t}", "(SELECT * REPLACE (NULL::BIGINT AS k) FROM {t})")
        return f"SELECT k, a, n + we * 100 AS n, ws, we FROM ({text})" if self.lateness == 5 else f"SELECT k, a, n, ws, we FROM ({text})"


def seconds(column: str) -> pl.Expr:
    return pl.col(column).dt.epoch("us") // SECOND


SUMS = (md.sum("v").alias("a"), md.count().alias("n"))
TUMBLING = "SELECT k, sum(v)::BIGINT AS a, count(*) AS n, ts // 10 * 10 AS ws, ts // 10 * 10 + 10 AS we FROM {t} GROUP BY k, ts // 10"
SLIDING = (
    "SELECT k, max(v) AS a, count(v) AS n, ws, ws + 12 AS we "
    "FROM (SELECT *, unnest([ts // 4 * 4, ts // 4 * 4 - 4, ts // 4 * 4 - 8]) AS ws FROM {t}) GROUP BY k, ws"
)
SESSIONS = (
    "SELECT k, sum(v)::BIGINT AS a, count(*) AS n, min(ts) AS ws, max(ts) + 3 AS we FROM (SELECT *, sum(begins) OVER (PARTITION BY k "
    "ORDER BY ts, id) AS number FROM (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts, id) <= 3 THEN 0 ELSE 1 END "
    "AS begins FROM {t})) GROUP BY k, number"
)
FIRST: list[tuple[str, Grow, str]] = [
    ("tumbling", lambda s, name, of: of.aggregate(s, md.tumbling("10s"), name, *SUMS), TUMBLING),
    (
        "sliding",
        lambda s, name, of: of.aggregate(s, md.sliding("12s", "4s"), name, md.max("v").alias("a"), md.count("v").alias("n")),
        SLIDING,
    ),
    ("sessions", lambda s, name, of: of.aggregate(s, md.session("3s"), name, *SUMS), SESSIONS),
]
BETWEEN = [
    Step("nothing", lambda s, name: s, "SELECT * FROM {t}"),
    Step("filter", lambda s, name: s.filter("a > 2", name=name), "SELECT * FROM {t} WHERE a > 2"),
    Step("columns", lambda s, name: s.with_columns("a - n AS a", name=name), "SELECT * REPLACE (a - n AS a) FROM {t}"),
    Step("function", lambda s, name: s.map_batches(whole, name=name, deterministic=True), changing.BETWEEN[3].query),
    Step("union", changing.BETWEEN[4].stream, changing.BETWEEN[4].query),
]
BEHIND = [
    *changing.SECOND,
    Step(
        "per window",
        lambda s, name: (
            s.with_columns(seconds("window_start").alias("b"), name=f"{name}_b").key_by("b").aggregate(*changing.everything(), name=name)
        ),
        f"SELECT b, {changing.ALL} FROM (SELECT *, ws AS b FROM {{t}}) GROUP BY b",
    ),
    Step(
        "best of a window",
        lambda s, name: (
            s.key_by("window_end").top(2, by=["a", "n"], descending=[True, False], name=name)
            .select(seconds("window_end").alias("b"), "k", "a", pl.col("rank").alias("c"), pl.col("n").alias("s"), name=f"{name}_s")
        ),
        "SELECT we AS b, k, a, row_number() OVER (PARTITION BY we ORDER BY a DESC NULLS LAST, n, k NULLS FIRST, ws) AS c, n AS s "
        "FROM {t} QUALIFY c <= 2",
    ),
    Step(
        "the windows themselves",
        lambda s, name: s.select(
            seconds("window_start").alias("b"), seconds("window_end").alias("c"), "k", "n", pl.col("a").alias("s"), name=name
        ),
        "SELECT ws AS b, we AS c, k, n, a AS s FROM {t}",
    ),
]  # fmt: skip


class Drawn:
    """A flow, its query, and its input."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(f"windows {seed}")
        rng = self.rng
        self.spec = Spec(rng)
        self.kind, self.grow, self.query = rng.choice(FIRST)
        self.steps = [rng.choice(pool) for pool in (BETWEEN, BETWEEN, BEHIND, changing.THIRD)]
        keys: list[int | None] = [*range(rng.choice((2, 5))), None]
        count, pace = rng.choice((0, 1, 6, 12, 12, 40, 100)), rng.choice((0.3, 1, 3))
        self.rows: list[Row] = []
        for number in range(count):
            newest = max((row[3] for row in self.rows), default=20)
            ts = max(newest - rng.randint(0, DISORDER), 0) if rng.random() < 0.6 else newest + round(rng.expovariate(1) * pace)
            self.rows.append((rng.choice(keys), rng.choice((None, -3, 0, 1, 1, 2, 3, 5, 8)), number, ts))

    @property
    def words(self) -> str:
        spec = f"{self.spec.emit}, lateness {self.spec.lateness}{'' if self.spec.keyed else ', no key'}"
        return " > ".join([f"{self.kind} ({spec})", *(step.name for step in self.steps)])

    def queries(self) -> list[str]:
        return [self.spec.query(self.query), *(step.query for step in self.steps)]

    def expected(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        """DuckDB's answer over all input: columns and rows."""
        with duckdb.connect() as connection:
            connection.execute("CREATE TABLE t0 (k BIGINT, v BIGINT, id BIGINT, ts BIGINT)")
            if self.rows:
                connection.executemany("INSERT INTO t0 VALUES (?, ?, ?, ?)", self.rows)
            queries = self.queries()
            for number, query in enumerate(queries):
                connection.execute(f"CREATE TABLE t{number + 1} AS {query.replace('{t}', f't{number}')}")
            rows = connection.execute(f"SELECT * FROM t{len(queries)}").fetchall()
            return [name for name, *_ in connection.description or ()], rows

    def script(self) -> Script:
        """The input, cut into epochs and splits."""
        epochs: list[tuple[tuple[int, tuple[Row, ...]], ...]] = []
        left = [(*row[:3], row[3] * SECOND) for row in self.rows]
        most = self.rng.choice((1, 3, 10, 100) if len(left) <= 12 else (8, 30, 100))
        several = self.rng.random() < 0.3
        while left:
            size = self.rng.randint(1, most)
            mine, left = left[:size], left[size:]
            at = self.rng.randint(0, len(mine))
            pieces = [piece for piece in (mine[:at], mine[at:]) if piece]
            epochs.append(tuple((number if several else 0, tuple(piece)) for number, piece in enumerate(pieces)))
        return Script(COLUMNS, tuple(epochs))

    def stream(self, rows: md.Stream) -> md.Stream:
        stream = self.grow(rows.watermark("ts", grace=self.spec.grace), "step0", self.spec)
        for number, step in enumerate(self.steps, 1):
            stream = step.stream(stream, f"step{number}")
        return stream

    def run(self, folder: Path) -> tuple[pl.DataFrame, pl.DataFrame, int]:
        """The log of changes, the plain log, and how many epochs it took: at a parallelism, with restarts, moves and merges as drawn."""
        flow, log, out = md.Flow("drawn"), md.memory(), md.memory()
        script = self.script()
        stream = self.stream(flow.source("rows", script))
        stream.changes(name="log").sink("log_out", log)
        stream.sink("out", out)
        parallelism, small, ahead = self.rng.choice((1, 2, 3)), self.rng.random() < 0.5, self.rng.random() < 0.5
        with constants(FEWEST=(compaction_module, 2)):
            local = Local(flow, folder, parallelism, small, ahead=ahead)
            while local.step():
                if self.rng.random() < 0.15:
                    parallelism = self.rng.choice((1, 2, 3))
                    local = Local(flow, folder, parallelism, small, ahead=ahead)
                if self.rng.random() < 0.15:
                    moved = self.rng.choice([name for name in ("step0", "step3") if name in local.loop.routing])
                    local.loop.reroute(moved, rebalance(local.loop.routing[moved], self.rng.randint(1, 3)))
            while local.step(flush=True):
                pass
        assert not local.manifest.totals.get("late_rows")
        return log.frame(), out.frame(), len(script.epochs)
