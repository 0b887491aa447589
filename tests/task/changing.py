"""Flows of operators that give out changes and take them, each beside the query whose answer its table must be. Drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.state import compaction as compaction_module
from meander.task.operators.joins import changes as change_joins

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "id": pl.Int64()}
Row = tuple[int | None, int | None, int]


def whole(frame: pl.DataFrame) -> pl.DataFrame:
    """Drops rows, and makes some twice: what a function may do that is row-local."""
    return pl.concat([frame.filter(pl.col("a").is_not_null()), frame.filter(pl.col("a") > 4)])


@dataclass(frozen=True)
class Step:
    """What a stream becomes, and what a query over ``{t}`` becomes with it."""

    name: str
    stream: Callable[[md.Stream, str], md.Stream]
    query: str


BRACKET = "CASE WHEN a > 7 THEN 2 WHEN a > 2 THEN 1 WHEN a <= 2 THEN 0 END AS b"
ORDER = {"a": True, "n": False}

FIRST = [
    Step(
        "sums",
        lambda s, name: s.key_by("k").aggregate(md.sum("v").alias("a"), md.count().alias("n"), name=name),
        "SELECT k, sum(v)::BIGINT AS a, count(*) AS n FROM {t} GROUP BY k",
    ),
    Step(
        "most",
        lambda s, name: s.key_by("k").aggregate(md.max("v").alias("a"), md.count("v").alias("n"), name=name),
        "SELECT k, max(v) AS a, count(v) AS n FROM {t} GROUP BY k",
    ),
    Step(
        "different",
        lambda s, name: s.key_by("k").aggregate(md.count_distinct("v").alias("a"), md.count().alias("n"), name=name),
        "SELECT k, count(DISTINCT v) AS a, count(*) AS n FROM {t} GROUP BY k",
    ),
    Step(
        "collected",
        lambda s, name: (
            s.key_by("k")
            .aggregate(md.collect("v").alias("all"), md.count().alias("n"), name=name)
            .select("k", pl.col("all").list.sum().alias("a"), "n")
        ),
        "SELECT k, coalesce(sum(v), 0)::BIGINT AS a, count(*) AS n FROM {t} GROUP BY k",
    ),
    Step(
        "latest",
        lambda s, name: s.key_by("k").latest(order="id", name=name).select("k", "v AS a", "id AS n"),
        "SELECT k, v AS a, id AS n FROM {t} QUALIFY row_number() OVER (PARTITION BY k ORDER BY id DESC) = 1",
    ),
    Step(
        "best",
        lambda s, name: s.key_by("k").top(3, by=["v", "id"], name=name).filter("rank <> 2").select("k", "v AS a", "rank AS n"),
        "SELECT k, v AS a, row_number() OVER (PARTITION BY k ORDER BY v DESC NULLS LAST, id DESC) AS n FROM {t} QUALIFY n <= 3 AND n <> 2",
    ),
]
BETWEEN = [
    Step("nothing", lambda s, name: s, "SELECT * FROM {t}"),
    Step("filter", lambda s, name: s.filter("a > 2", name=name), "SELECT * FROM {t} WHERE a > 2"),
    Step("columns", lambda s, name: s.with_columns("a - n AS a", name=name), "SELECT k, a - n AS a, n FROM {t}"),
    Step(
        "function",
        lambda s, name: s.map_batches(whole, name=name, deterministic=True),
        "SELECT * FROM {t} WHERE a IS NOT NULL UNION ALL SELECT * FROM {t} WHERE a > 4",
    ),
    Step(
        "union",
        lambda s, name: s.union(s.filter("a > 3", name=f"{name}_large"), name=name),
        "SELECT * FROM {t} UNION ALL SELECT * FROM {t} WHERE a > 3",
    ),
]
ALL = (
    "count(*) AS c, count(a) AS ca, sum(a)::BIGINT AS s, min(a) AS lo, max(a) AS hi, count(DISTINCT a) AS d, avg(a) AS mean, "
    "coalesce(list(a ORDER BY a DESC) FILTER (a IS NOT NULL), [])[1:2] AS two"
)


def everything() -> list[Any]:
    return [
        md.count().alias("c"),
        md.count("a").alias("ca"),
        md.sum("a").alias("s"),
        md.min("a").alias("lo"),
        md.max("a").alias("hi"),
        md.count_distinct("a").alias("d"),
        md.mean("a").alias("mean"),
        md.top_k("a", 2).alias("two"),
    ]


SECOND = [
    Step(
        "per bracket",
        lambda s, name: s.with_columns(BRACKET, name=f"{name}_b").key_by("b").aggregate(*everything(), name=name),
        f"SELECT b, {ALL} FROM (SELECT *, {BRACKET} FROM {{t}}) GROUP BY b",
    ),
    Step(
        "per number",
        lambda s, name: s.select("n AS b", "a", name=f"{name}_b").key_by("b").aggregate(*everything(), name=name),
        f"SELECT b, {ALL} FROM (SELECT n AS b, a FROM {{t}}) GROUP BY b",
    ),
    Step(
        "of all",
        lambda s, name: s.aggregate(*(agg for agg in everything() if agg.name != "d"), name=name).with_columns(pl.lit(1).alias("b")),
        f"SELECT * EXCLUDE d FROM (SELECT 1 AS b, {ALL} FROM {{t}} HAVING count(*) > 0)",
    ),
    Step(
        "best per bracket",
        lambda s, name: (
            s.with_columns(BRACKET, name=f"{name}_b")
            .key_by("b")
            .top(2, by=list(ORDER), descending=list(ORDER.values()), name=name)
            .select("b", "k AS c", "a AS s", "rank")
        ),
        f"SELECT b, k AS c, a AS s, row_number() OVER (PARTITION BY b ORDER BY a DESC NULLS LAST, n ASC, k ASC NULLS FIRST) AS rank "
        f"FROM (SELECT *, {BRACKET} FROM {{t}}) QUALIFY rank <= 2",
    ),
]
THIRD = [
    Step("nothing", lambda s, name: s, "SELECT * FROM {t}"),
    Step(
        "counts of counts",
        lambda s, name: s.key_by("c").aggregate(md.count().alias("m"), md.sum("s").alias("s"), md.max("b").alias("b"), name=name),
        "SELECT c, count(*) AS m, sum(s)::BIGINT AS s, max(b) AS b FROM {t} GROUP BY c",
    ),
]


HOWS = ("inner", "left", "right", "full", "semi", "anti")
CONDITIONS = {"": "", ", a > x": "a > x", ", x odd or none": "x % 2 <> 0 OR x IS NULL"}
OTHERS: dict[str, tuple[str, Callable[[md.Stream, md.Stream, str], md.Stream], str]] = {
    "all rows": ("n", lambda s, rows, name: rows.select("v AS b", "id AS x"), "SELECT v AS b, id AS x FROM t0"),
    "rows alone": ("n", lambda s, rows, name: rows.select("v AS b"), "SELECT v AS b FROM t0"),
    "most of the key": (
        "k",
        lambda s, rows, name: rows.key_by("k").aggregate(md.max("v").alias("x"), name=f"{name}_most").select("k AS b", "x"),
        "SELECT k AS b, max(v) AS x FROM t0 GROUP BY k",
    ),
    "count of the value": (
        "a",
        lambda s, rows, name: rows.key_by("v").aggregate(md.count().alias("x"), name=f"{name}_n").filter("x < 4").select("v AS b", "x"),
        "SELECT v AS b, count(*) AS x FROM t0 GROUP BY v HAVING count(*) < 4",
    ),
    "itself": ("a", lambda s, rows, name: s.select("n AS b", "a AS x"), "SELECT n AS b, a AS x FROM {t}"),
}
"""By what the right side is: the left's key, the stream (its key is b), and the query."""


def joining(other: str, how: str, condition: str, nulls_equal: bool, flipped: bool) -> Step:
    key, right, right_query = OTHERS[other]
    where = CONDITIONS[condition] if other != "rows alone" else ""
    left_query = "SELECT k, v AS a, id AS n FROM t0" if flipped else "SELECT k, a, n FROM {t}"

    def join(s: md.Stream, name: str) -> md.Stream:
        rows = md.Stream(s.flow, "rows")
        if flipped:  # what is append-only is on the left
            one, two = rows.select("k", "v AS a", "id AS n"), s.select("n AS b", "a AS x")
        else:
            one, two = s.select("k", "a", "n"), right(s, rows, name)
        joined = one.join(two, left_on=key, right_on="b", how=how, where=where or None, nulls_equal=nulls_equal, name=name)
        x = "x" if "x" in joined.schema else "n"
        return joined.select("k", "a", f"{x} AS n")

    if flipped:
        right_query = "SELECT n AS b, a AS x FROM {t}"
    has_x = " x " in right_query or right_query.split(" FROM")[0].endswith("x")
    on = f"l.{key} {'IS NOT DISTINCT FROM' if nulls_equal else '='} r.b" + (f" AND ({where})" if where else "")
    if how in ("semi", "anti"):
        exists = "EXISTS" if how == "semi" else "NOT EXISTS"
        query = f"SELECT k, a, n FROM ({left_query}) l WHERE {exists} (SELECT 1 FROM ({right_query}) r WHERE {on})"
    else:
        columns = [f"coalesce(l.{column}, r.b) AS {column}" if column == key else f"l.{column}" for column in ("k", "a", "n")]
        if has_x:
            columns[2] = "r.x AS n"
        query = f"SELECT {', '.join(columns)} FROM ({left_query}) l {how} JOIN ({right_query}) r ON {on}"
    told = f"{how} join with {other}{condition}{', nulls equal' if nulls_equal else ''}{', flipped' if flipped else ''}"
    return Step(told, join, query)


JOINS = [
    joining(other, how, condition, nulls_equal, flipped)
    for other in OTHERS
    for how in HOWS
    for condition in CONDITIONS
    for nulls_equal in (False, True)
    for flipped in ((False, True) if other == "itself" else (False,))
]


@dataclass
class Drawn:
    """A flow, its query, and its input."""

    seed: int
    restarts: int = 0
    moves: int = 0
    """How often it was started again, and rescaled, in its run."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        nothing = BETWEEN[:1]
        joins = (self.rng.choice((nothing, JOINS, JOINS)), self.rng.choice((nothing, nothing, JOINS)))
        pools = [FIRST, BETWEEN, joins[0], BETWEEN, joins[1], SECOND, THIRD]
        if JOINS in joins and self.rng.random() < 0.4:
            pools = pools[:5]
        self.steps = [self.rng.choice(pool) for pool in pools]
        keys: list[int | None] = [*range(self.rng.choice((2, 5, 12))), None]
        count = self.rng.choice((0, 1, 4, 12, 12, 40, 100))
        self.rows: list[Row] = [
            (self.rng.choice(keys), self.rng.choice((None, -3, -1, 0, 1, 1, 2, 3, 5, 8)), number) for number in range(count)
        ]

    @property
    def words(self) -> str:
        return " > ".join(step.name for step in self.steps)

    def expected(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        """DuckDB's answer over all input: columns and rows."""
        with duckdb.connect() as connection:
            connection.execute("CREATE TABLE t0 (k BIGINT, v BIGINT, id BIGINT)")
            if self.rows:
                connection.executemany("INSERT INTO t0 VALUES (?, ?, ?)", self.rows)
            for number, step in enumerate(self.steps):
                query = step.query.replace("{t}", f"t{number}")
                connection.execute(f"CREATE TABLE t{number + 1} AS {query}")
            rows = connection.execute(f"SELECT * FROM t{len(self.steps)}").fetchall()
            return [name for name, *_ in connection.description or ()], rows

    def script(self) -> Script:
        """The input, cut into epochs and splits."""
        epochs: list[tuple[tuple[int, tuple[Row, ...]], ...]] = []
        left = list(self.rows)
        most = self.rng.choice((1, 3, 10, 100) if len(left) <= 12 else (8, 30, 100))
        while left:
            size = self.rng.randint(1, most)
            mine, left = left[:size], left[size:]
            at = self.rng.randint(0, len(mine))
            pieces = [piece for piece in (mine[:at], mine[at:]) if piece]
            epochs.append(tuple((number, tuple(piece)) for number, piece in enumerate(pieces)))
        return Script(COLUMNS, tuple(epochs))

    def run(self, folder: Path) -> tuple[pl.DataFrame, pl.DataFrame, int]:
        """The log of changes, the plain log, and how many epochs it took: at a parallelism, with restarts, moves and merges as drawn."""
        log, out = md.memory(), md.memory()

        def sinks(stream: md.Stream) -> None:
            stream.changes(name="log").sink("log_out", log)
            stream.sink("out", out)

        epochs = self.drive(folder, sinks)
        return log.frame(), out.frame(), epochs

    def drive(self, folder: Path, sinks: Callable[[md.Stream], object], each: Callable[[Local], object] = lambda local: None) -> int:
        """Run the flow into these sinks, and say how many epochs it took; ``each`` is called after every one."""
        flow = md.Flow("drawn")
        script = self.script()
        stream = flow.source("rows", script)
        for number, step in enumerate(self.steps):
            stream = step.stream(stream, f"step{number}")
        sinks(stream)
        parallelism, small, ahead = self.rng.choice((1, 2, 3)), self.rng.random() < 0.5, self.rng.random() < 0.5
        at_once = random.Random(f"pairs {self.seed}").choice((1, 7, 1 << 18))
        with constants(FEWEST=(compaction_module, 2), _AT_ONCE=(change_joins, at_once)):
            local = Local(flow, folder, parallelism, small, ahead=ahead)
            while local.step():
                each(local)
                if self.rng.random() < 0.15:
                    parallelism = self.rng.choice((1, 2, 3))
                    local = Local(flow, folder, parallelism, small, ahead=ahead)
                    self.restarts += 1
                if self.rng.random() < 0.15:
                    moved = self.rng.choice(sorted(local.loop.routing))
                    local.loop.reroute(moved, rebalance(local.loop.routing[moved], self.rng.randint(1, 3)))
                    self.moves += 1
        return len(script.epochs)


def table_of(log: pl.DataFrame) -> pl.DataFrame:
    """The table that a log of changes stands for."""
    counted = log.group_by(pl.exclude("change")).agg(pl.col("change").cast(pl.Int64).sum())
    assert (counted.get_column("change") >= 0).all(), "a row is gone that had never come"
    return counted.select(pl.exclude("change").repeat_by("change")).explode(pl.all())
