"""A Nexmark query on Meander, for the benchmark: its state in a store on disk, its output nowhere (q10's in files)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import meander as md
from meander.bench.harness.isolation import Progress
from meander.bench.harness.statistics import Json
from meander.bench.nexmark.request import NexmarkRequest
from meander.connect.sink import Sink
from meander.nexmark.checking import output
from meander.nexmark.queries import FLOWS, build

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone


def run(request: NexmarkRequest, progress: Progress) -> Json:
    """All files, epoch by epoch; the answer has the moment at which each ended and the parts of its
    time."""
    settings = {name.replace(".", "_"): value for name, value in request.settings.items()}
    session = md.spark(master=request.master, app_name="meander-nexmark", spark_driver_memory=request.memory, **settings)
    tables = {name: md.files(request.tables[name], max_files_per_epoch=request.files_per_epoch) for name in FLOWS[request.query]}
    out: Sink = output("q10", Path(request.folder) / "out") if request.query == "q10" else md.discard()
    flow = build(request.query, tables, out)
    epochs: list[Json] = []

    def listen(done: EpochDone) -> None:
        counts = done.outcome.counts
        epochs.append(
            {
                "end": time.monotonic(),
                "rows_in": counts.get("rows_in", 0),
                "rows_out": counts.get("rows_out", 0),
                "wall_ms": {name: value * 1000 for name, value in done.seconds.items()},
                "task_ms": {name: value * 1000 for name, value in done.outcome.seconds.items()},
                "state_bytes": sum(table.bytes for table in done.manifest.tables.values()),
            }
        )
        progress(done.epoch)

    with flow.start(Path(request.folder) / "store", spark=session, parallelism=request.parallelism, trigger=None) as started:
        started.on_epoch(listen)
        found = started.process_available()
    session.stop()
    expected = sum(request.rows[name] for name in FLOWS[request.query])
    if (found.rows_in, found.dead_letters) != (expected, 0):
        raise md.Corrupted(f"{request.query}: {found} was processed; the input has {expected} rows, and none of them is bad or late")
    # An epoch without input closes what is due; its time is that of the epoch before it.
    return {"epochs": _with_input(epochs), "rows_out": found.rows_out}


def _with_input(epochs: list[Json]) -> list[Json]:
    merged: list[Json] = []
    for epoch in epochs:
        if epoch["rows_in"] or not merged:
            merged.append(epoch)
        else:
            merged[-1]["end"] = epoch["end"]
            merged[-1]["rows_out"] += epoch["rows_out"]
    return merged
