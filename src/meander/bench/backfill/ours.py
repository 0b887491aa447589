"""The measured side of the benchmark of long spans: a flow with one stateful operator over all of the input."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import meander as md
from meander.bench.backfill.request import GAP, GRACE, SLIDE, WINDOW, WITHIN, BackfillRequest, Record
from meander.bench.harness.statistics import Json

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone


class Visits(md.Processor):
    """Counts and adds up until the timer of the visit's window fires, then gives that out and forgets the key."""

    output: ClassVar[Any] = {"fired": "timestamp", "n": "int64", "total": "double"}
    n = md.value("int64", default=0)
    total = md.value("double", default=0.0)

    def on_events(self, key: int, rows: Any, state: Any, ctx: Any) -> None:
        if not state.n:
            first = rows["ts"][0]
            ctx.set_timer(first.replace(second=first.second // WINDOW * WINDOW) + timedelta(seconds=WINDOW))
        state.n += len(rows)
        state.total += sum(rows["value"])

    def on_timer(self, key: int, time: Any, state: Any, ctx: Any) -> Iterator[Any]:
        yield time, state.n, state.total
        state.clear()


def build(request: BackfillRequest) -> md.Flow:
    flow = md.Flow("backfill")
    streams = [
        flow.source(f"events_{number}", md.files(side, max_files_per_epoch=1)).watermark("ts", grace=f"{GRACE}s")
        for number, side in enumerate(request.sides)
    ]
    WORKS[request.operator](*streams).sink("out", md.parquet(request.output))
    return flow


def _windows(window: Any) -> Callable[[md.Stream], md.Stream]:
    def work(events: md.Stream) -> md.Stream:
        return events.key_by("key").window(window).aggregate(md.count().alias("n"), md.sum("value").alias("total"), name="work")

    return work


WORKS: dict[str, Callable[..., md.Stream]] = {
    "tumbling": _windows(md.tumbling(f"{WINDOW}s")),
    "sliding": _windows(md.sliding(f"{WINDOW}s", f"{SLIDE}s")),
    "session": _windows(md.session(f"{GAP}s")),
    "join": lambda left, right: left.join(right, on="key", within=f"{WITHIN}s", name="work"),
    "as-of": lambda left, right: left.join_latest(right, on="key", as_of=True, how="left", name="work"),
    "deduplicate": lambda events: events.deduplicate("id", ttl=f"{GRACE}s", name="work"),
    "timers": lambda events: events.key_by("key").process(Visits, name="work"),
}


def run(request: BackfillRequest, progress: Callable[[int], None]) -> Json:
    """Epoch by epoch: its end, its output, the bytes written, and the size of the state."""
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    record = Record(request.folder)
    known: set[str] = set()

    def listen(done: EpochDone) -> None:
        end = time.time()
        held = {segment.name: segment.bytes for table in done.manifest.tables.values() for segment in table.segments}
        written = [size for name, size in held.items() if name not in known]
        known.clear()
        known.update(held)
        record.add(
            {
                "end": end,
                "rows_in": done.outcome.counts.get("rows_in", 0),
                "rows_out": done.outcome.counts.get("rows_out", 0),
                "files": len(written),
                "bytes": sum(written),
                "files_held": len(held),
                "bytes_held": sum(held.values()),
            }
        )
        progress(done.epoch)

    store = Path(request.folder) / "store"
    with build(request).start(store, spark=session, parallelism=request.parallelism, trigger=None) as running:
        running.on_epoch(listen)
        record.begin()
        found = running.process_available()
    session.stop()
    if found.dead_letters:
        raise md.Corrupted(f"{request.operator}: {found.dead_letters} rows were dropped as late or bad; the input has none of either")
    return {}
