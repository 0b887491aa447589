"""What an epoch writes does not follow the time that its rows span: a year of it makes as many segments as a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander.state.manifest import operator_of

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND
ROWS = 2_000
SLOTS = 2


class Sleeper(md.Processor):
    """Wants to be woken a second after every row."""

    output = {"n": "int64"}  # noqa: RUF012
    count = md.value("int64", default=0)

    def on_events(self, key: int, rows: md.processor.Rows, state: Any, ctx: Any) -> Iterator[Any]:
        for row in rows:
            state.count += 1
            ctx.set_timer(row.ts + timedelta(seconds=1))
        yield (state.count,)

    def on_timer(self, key: int, time: Any, state: Any, ctx: Any) -> Any:
        return (state.count,)


Build = Callable[[Any, Any], Any]
OPERATORS: dict[str, tuple[Build, int]] = {
    "tumbling windows": (lambda left, right: left.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="op"), 1),
    "sessions": (lambda left, right: left.key_by("k").window(md.session("10s")).aggregate(md.count().alias("n"), name="op"), 1),
    "interval join": (lambda left, right: left.join(right, on="k", within="10s", name="op"), 2),
    "outer interval join": (lambda left, right: left.join(right, on="k", within="10s", how="full", name="op"), 4),
    "semi join": (lambda left, right: left.join(right.filter("v % 2 = 0"), on="k", within="10s", how="semi", name="op"), 2),
    "anti join": (lambda left, right: left.join(right.filter("v % 2 = 0"), on="k", within="10s", how="anti", name="op"), 2),
    "outer join in sliding windows": (
        lambda left, right: left.window(md.sliding("10s", "2s")).join(right, on="k", how="full", name="op"),
        4,
    ),
    "anti join in sliding windows": (
        lambda left, right: left.window(md.sliding("10s", "2s")).join(right.filter("v % 2 = 0"), on="k", how="anti", name="op"),
        3,
    ),
    "as-of join": (lambda left, right: left.join_latest(right, on="k", as_of=True, name="op"), 2),
    "deduplicate": (lambda left, right: left.deduplicate("k", ttl="10s", name="op"), 1),
    "processor with timers": (lambda left, right: left.key_by("k").process(Sleeper, name="op"), 2),
}


@pytest.mark.many
@pytest.mark.parametrize("kind", OPERATORS)
def test_an_epoch_of_a_year_writes_a_segment_per_table_and_slot(kind: str, tmp_path: Path) -> None:
    build, tables = OPERATORS[kind]
    year = tuple((n % 97, n, YEAR * n // ROWS) for n in range(ROWS))
    after = ((1, 1, 5 * YEAR), (2, 1, 5 * YEAR))
    flow = md.Flow("spans")
    script = Script(COLUMNS, (((0, year),), ((0, after),), ((0, after[:1]),)))
    left, right = (flow.source(name, script).watermark("ts", grace="400d") for name in ("left", "right"))
    build(left, right).sink("out", md.memory())
    if tables == 1 or kind.startswith("processor"):
        right.sink("other", md.memory())
    local = Local(flow, tmp_path, SLOTS)
    assert local.step()
    written = {name: table.segments for name, table in local.manifest.tables.items() if operator_of(name) == "op"}
    assert sum(table.rows for name, table in local.manifest.tables.items() if name in written) >= 97
    assert {name: len(segments) for name, segments in written.items() if len(segments) > SLOTS} == {}
    assert 1 <= sum(len(segments) for segments in written.values()) <= tables * SLOTS
    local.run()
    old = {ref.name for segments in written.values() for ref in segments if ref.ends}
    assert not old & {ref.name for table in local.manifest.tables.values() for ref in table.segments if ref.groups}
