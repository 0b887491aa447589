"""Python code with state and timers per key: visits to a site, closed when nothing came for half an hour.

Run it (about ten seconds, most of them Spark's start):

    python examples/processor.py

Expect one line per visit, with the pages that were looked at; at the end all visits are closed, and nothing is remembered of anybody.
"""

import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

import meander as md


class Visits(md.Processor):
    """A visit ends half an hour after its last page."""

    output: ClassVar[Any] = {"pages": "int64", "first": "string", "end": "timestamp"}
    pages = md.list_of("string")
    until = md.value("timestamp")

    def on_events(self, key: str, rows: Any, state: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if state.until is not None:
            ctx.delete_timer(state.until)
        for row in rows:
            if state.until is not None and row.ts > state.until:  # the pause is among these rows: its timer would come after them
                yield self._ended(state)
            state.pages.append(row.page)
            state.until = row.ts + HALF_AN_HOUR
        ctx.set_timer(state.until)

    def on_timer(self, key: str, time: datetime, state: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield self._ended(state)

    def _ended(self, state: Any) -> tuple[Any, ...]:
        visit = (len(state.pages), state.pages[0], state.until)
        state.clear()
        return visit


HALF_AN_HOUR = timedelta(minutes=30)
CLICKS = [
    ("ann", "/", "10:00"),
    ("bob", "/news", "10:05"),
    ("ann", "/news", "10:10"),
    ("ann", "/about", "10:20"),
    ("bob", "/", "10:30"),
    ("ann", "/", "11:30"),
]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="meander-visits-") as folder:
        clicks = pl.DataFrame(CLICKS, schema=["user", "page", "ts"], orient="row")
        clicks = clicks.with_columns(pl.format("2024-01-01 {}", "ts").str.to_datetime("%Y-%m-%d %H:%M").alias("ts"))
        Path(folder, "in").mkdir()
        clicks.write_parquet(Path(folder, "in", "clicks.parquet"))
        out = md.memory()
        flow = md.Flow("visits")
        source = flow.source("clicks", md.files(str(Path(folder, "in"))))
        source.watermark("ts", grace="5m").key_by("user").process(Visits, name="visits").sink("out", out)
        with flow.start(store=Path(folder, "state"), trigger=None) as run:
            run.process_available(flush=True)
        for user, pages, first, end in pl.DataFrame(out.table()).sort("end").iter_rows():
            print(f"visits of {user}: {pages} pages from {first}, until {end:%H:%M}")
        left = md.read_state(Path(folder, "state"), "visits").num_rows
    print("nothing is remembered" if left == 0 else f"{left} keys are remembered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
