"""The measured side of the benchmark of expiry: a flow with windows over all of the input, its state after every epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

import meander as md
from meander.bench.harness.statistics import Json

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone

WINDOW_SECONDS = 10
EPOCHS_PER_WINDOW = 2
_SLIDES = 2
KINDS: dict[str, Callable[[], Any]] = {
    "tumbling": lambda: md.tumbling(f"{WINDOW_SECONDS}s"),
    "sliding": lambda: md.sliding(f"{WINDOW_SECONDS}s", f"{WINDOW_SECONDS // _SLIDES}s"),
    "session": lambda: md.session("4s"),
}


@dataclass(frozen=True)
class ExpiryRequest:
    """One kind of window over one input."""

    work: ClassVar[str] = "expiry"
    system: str
    kind: str
    input: str
    folder: str
    master: str
    parallelism: int
    memory: str

    @staticmethod
    def from_json(fields: Json) -> ExpiryRequest:
        return ExpiryRequest(**fields)


def run(request: ExpiryRequest, progress: Callable[[int], None]) -> Json:
    """Epoch by epoch: its end, and the state at that time."""
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    flow, out = md.Flow("bench"), str(Path(request.folder) / "out")
    events = flow.source("events", md.files(request.input, max_files_per_epoch=1)).watermark("ts", grace="1s")
    windows = events.key_by("key").window(KINDS[request.kind]())
    windows.aggregate(md.count().alias("n"), md.sum("value").alias("total"), name="windows").sink("out", md.parquet(out))
    epochs: list[Json] = []

    def listen(done: EpochDone) -> None:
        segments = [segment for table in done.manifest.tables.values() for segment in table.segments]
        held = {"rows": sum(segment.rows for segment in segments), "bytes": sum(segment.bytes for segment in segments)}
        epochs.append({"end": time.monotonic(), "segments": len(segments), **held})
        progress(done.epoch)

    with flow.start(Path(request.folder) / "store", spark=session, parallelism=request.parallelism, trigger=None) as running:
        running.on_epoch(listen)
        running.process_available(flush=True)
    session.stop()
    return {"epochs": epochs, "rows_out": _verified(request, out)}


def _verified(request: ExpiryRequest, out: str) -> int:
    """Every window came out once and has all of its events, or the measurement does not count. How many there were."""
    found = pl.read_parquet(f"{out}/**/*.parquet")
    expected = pl.read_parquet(f"{request.input}/*.parquet").height * (_SLIDES if request.kind == "sliding" else 1)
    counted, windows = found.get_column("n").sum(), found.select(pl.struct("key", "window_start").n_unique()).item()
    if (counted, windows) != (expected, found.height):
        raise md.Corrupted(f"{found.height} rows of {windows} windows count {counted} events; the input has {expected}")
    return found.height
