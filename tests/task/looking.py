"""Chains of windows that come again, joins, aggregates and ranks, looked at after every epoch. Drawn from a seed.

After each epoch the last table must be the query over the first one as it is then. The first one is that of an aggregate, or of windows
that may have refused late rows and been closed by flushes between epochs: of these it is taken as it is.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from tests.local import Local, Script, constants
from tests.task import changing, window_changing
from tests.task.changing import Step
from tests.task.window_changing import COLUMNS, DISORDER, SECOND, Grow, Row, Spec, seconds

import meander as md
from meander.connect.memory_table import MemoryTable
from meander.coordinate.routing import rebalance
from meander.state import compaction as compaction_module
from meander.task.operators.joins import changes as change_joins

GAP = "CASE WHEN v > 2 THEN interval '6 seconds' WHEN v = 0 THEN interval '1 second' ELSE interval '3 seconds' END"
WINDOWS: list[tuple[str, Grow]] = [
    *((name, grow) for name, grow, _ in window_changing.FIRST),
    ("cumulating", lambda s, name, of: of.aggregate(s, md.cumulating("12s", step="4s"), name, *window_changing.SUMS)),
    ("sessions with gaps of rows", lambda s, name, of: of.aggregate(s, md.session(GAP), name, *window_changing.SUMS)),
]
AGAIN = Step(
    "as before",
    lambda s, name: s.select(*(pl.col(old).cast(pl.Int64).alias(new) for old, new in (("b", "k"), ("c", "a"), ("s", "n"))), name=name),
    "SELECT b::BIGINT AS k, c::BIGINT AS a, s::BIGINT AS n FROM {t}",
)
PLAIN = Step("without windows", lambda s, name: s.select("k", "a", "n", name=name), "SELECT k, a, n FROM {t}")


def in_order(rows: list[Any]) -> list[Any]:
    """Means may differ in their last digit."""
    return sorted((tuple(round(value, 9) if isinstance(value, float) else value for value in row) for row in rows), key=repr)


class Looked:
    """A flow, its query, and its input."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"looked {seed}")
        self.spec = Spec(rng)
        if rng.random() < 0.5:  # some rows are late
            self.spec.grace = rng.choice((0, 2, 6))
        self.aggregate = rng.choice(changing.FIRST) if rng.random() < 0.25 else None
        self.kind, self.grow = rng.choice(WINDOWS)
        joins = [rng.choice(changing.JOINS) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        self.steps = [PLAIN, rng.choice(changing.BETWEEN)]
        for join in joins:
            self.steps += [join, rng.choice(changing.BETWEEN)]
        if rng.random() < 0.7:
            self.steps.append(rng.choice(changing.SECOND))
            if rng.random() < 0.4:
                self.steps += [AGAIN, rng.choice(changing.JOINS), rng.choice(changing.SECOND)]
            self.steps.append(rng.choice(changing.THIRD))
        keys: list[int | None] = [*range(rng.choice((1, 2, 5))), None]
        pace = rng.choice((0.3, 1, 3))
        self.rows: list[Row] = []
        for number in range(rng.choice((6, 12, 12, 25, 40))):
            newest = max((row[3] for row in self.rows), default=20)
            ts = max(newest - rng.randint(0, DISORDER), 0) if rng.random() < 0.6 else newest + round(rng.expovariate(1) * pace)
            self.rows.append((rng.choice(keys), rng.choice((None, -3, 0, 1, 1, 2, 3, 5, 8)), number, ts))

    @property
    def words(self) -> str:
        spec = f"{self.kind} ({self.spec.emit}, lateness {self.spec.lateness}, grace {self.spec.grace})"
        return " > ".join([spec if self.aggregate is None else self.aggregate.name, *(step.name for step in self.steps)])

    def script(self) -> Script:
        """The input, cut into epochs and splits."""
        epochs, most, several = [], self.rng.choice((1, 3, 8)), self.rng.random() < 0.3
        left = [(*row[:3], row[3] * SECOND) for row in self.rows]
        while left:
            size = self.rng.randint(1, most)
            mine, left = left[:size], left[size:]
            at = self.rng.randint(0, len(mine))
            pieces = [piece for piece in (mine[:at], mine[at:]) if piece]
            epochs.append(tuple((number if several else 0, tuple(piece)) for number, piece in enumerate(pieces)))
        return Script(COLUMNS, tuple(epochs))

    def run(self, folder: Path) -> int:
        """Run it with restarts, rescales, merges and flushes as drawn. Returns how often it was looked at."""
        flow, first, last = md.Flow("looked"), md.memory(table=True), md.memory(table=True)
        script, rng, looks = self.script(), self.rng, 0
        stream = flow.source("rows", script)
        if self.aggregate is not None:
            stream = self.aggregate.stream(stream, "step0")
        else:
            stream = self.grow(stream.watermark("ts", grace=self.spec.grace), "step0", self.spec)
        named = [seconds("window_start").alias("ws"), seconds("window_end").alias("we")] if self.aggregate is None else []
        stream.select("k", "a", "n", *named, name="first").sink("first_out", first)
        for number, step in enumerate(self.steps, 1):
            stream = step.stream(stream, f"step{number}")
        stream.sink("last_out", last)

        def start() -> Local:
            return Local(flow, folder, rng.choice((1, 2, 3)), rng.random() < 0.5, ahead=rng.random() < 0.5)

        with constants(FEWEST=(compaction_module, 2), _AT_ONCE=(change_joins, rng.choice((1, 7, 1 << 18)))):
            local = start()
            while True:
                if self.aggregate is None and rng.random() < 0.1:
                    for _ in local.flush():
                        looks += self._look(local, script, first, last)
                if not local.step():
                    break
                looks += self._look(local, script, first, last)
                if rng.random() < 0.15:
                    local = start()
                if rng.random() < 0.2:
                    moved = rng.choice(sorted(local.loop.routing))
                    local.loop.reroute(moved, rebalance(local.loop.routing[moved], rng.randint(1, 3)))
            while local.step(flush=True):
                looks += self._look(local, script, first, last)
        return looks

    def _look(self, local: Local, script: Script, first: MemoryTable, last: MemoryTable) -> int:
        done = local.manifest.offsets.get("rows", {"next": 0})["next"]
        rows = [(*row[:3], row[3] // SECOND) for splits in script.epochs[:done] for _, piece in splits for row in piece]
        with duckdb.connect() as connection:
            connection.register("given", pl.DataFrame(rows, ["k", "v", "id", "ts"], orient="row").cast(pl.Int64).to_arrow())
            connection.execute("CREATE TABLE t0 AS SELECT * FROM given")
            found = first.frame()
            if self.aggregate is not None:
                query = f"SELECT k, a, n FROM ({self.aggregate.query.replace('{t}', 't0')})"
                assert in_order(connection.execute(query).fetchall()) == in_order(found.rows())
            connection.register("one", (found if found.width else pl.DataFrame(schema=dict.fromkeys("kan", pl.Int64))).to_arrow())
            connection.execute("CREATE TABLE t1 AS SELECT * FROM one")
            for number, step in enumerate(self.steps, 1):
                connection.execute(f"CREATE TABLE t{number + 1} AS {step.query.replace('{t}', f't{number}')}")
            answer = connection.execute(f"SELECT * FROM t{len(self.steps) + 1}")
            columns = [name for name, *_ in answer.description or ()]
            shown = last.frame()
            assert in_order(shown.select(columns).rows() if shown.width else []) == in_order(answer.fetchall()), local.manifest.epoch
        return 1
