"""The measured side: count and sum per key in a Meander flow, its state in a store on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

import meander as md
from meander.bench.harness.isolation import Request
from meander.bench.harness.processes import WorkerMemory
from meander.bench.harness.statistics import Json

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone

OPERATOR = "totals"


def run_meander(request: Request, progress: Callable[[int], None]) -> Json:
    """All of the input, epoch by epoch; the answer has the moment at which each ended and what it spent its time on."""
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory, **_keywords(request.settings))
    flow = md.Flow("bench")
    source = md.files(request.input.folder, max_files_per_epoch=request.input.files_per_epoch)
    totals = flow.source("events", source).key_by("key").aggregate(md.count().alias("n"), md.sum("value").alias("total"), name=OPERATOR)
    totals.sink("out", md.discard())
    store = Path(request.folder) / "store"
    memory = WorkerMemory()
    epochs: list[Json] = []

    def listen(done: EpochDone) -> None:
        epochs.append({"end": time.monotonic(), **_describe(done)})
        if request.watch_memory_after == done.epoch:
            memory.start()
        progress(done.epoch)

    with flow.start(store, spark=session, parallelism=request.parallelism, trigger=None) as run:
        run.on_epoch(listen)
        run.process_available()
        state_bytes = run.status()["operators"][OPERATOR]["bytes"]
    peak = memory.stop()
    verify(store, request)
    session.stop()
    return {"epochs": epochs, "state_bytes": state_bytes, "worker_bytes": peak, "workers": len(memory.workers)}


def verify(store: Path, request: Request) -> None:
    """Every event is in the state once, or the measurement does not count."""
    expected = request.input
    state = md.read_state(store, OPERATOR)
    events, total = pc.sum(state.column("n")).as_py(), pc.sum(state.column("total")).as_py()
    if (events, state.num_rows) != (expected.events, expected.keys) or not math.isclose(total, expected.total, rel_tol=1e-9):
        raise md.Corrupted(
            f"the state counts {events} events of {state.num_rows} keys, sum {total}; "
            f"the input has {expected.events} of {expected.keys}, sum {expected.total}"
        )


def _describe(done: EpochDone) -> Json:
    table, routing = done.manifest.tables[OPERATOR], done.manifest.routing[OPERATOR]
    runs = [0] * (max(routing) + 1)
    for slot in range(len(runs)):
        mine = sum(1 << group for group, owner in enumerate(routing) if owner == slot)
        runs[slot] = sum(1 for segment in table.segments if segment.groups & mine)
    return {
        "rows_in": done.outcome.counts.get("rows_in", 0),
        "rows_out": done.outcome.counts.get("rows_out", 0),
        "wall_ms": {name: value * 1000 for name, value in done.seconds.items()},
        "task_ms": {name: value * 1000 for name, value in done.outcome.seconds.items()},
        "runs_per_slot": max(runs),
    }


def _keywords(settings: dict[str, str]) -> dict[str, str]:
    """Spark's settings as ``md.spark`` takes them."""
    return {name.replace(".", "_"): value for name, value in settings.items()}
