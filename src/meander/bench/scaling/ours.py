"""One shape of flow with one number of slots: first at full speed, for its throughput, then at a steady rate, for its latency."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import meander as md
from meander.bench.harness.isolation import Progress
from meander.bench.harness.latency import Published, latency_numbers
from meander.bench.harness.statistics import Json, intervals
from meander.bench.load.source import WorkloadSource
from meander.bench.load.workload import build_flow
from meander.bench.scaling.request import ScalingRequest

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone

_WARM_SHARE = 0.25
"""The part of the time at a steady rate that is not counted."""


def run(request: ScalingRequest, progress: Progress) -> Json:
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    per_second = _throughput(request, session, progress)
    rate = request.rate or request.share * per_second
    found = {"events_per_second": round(per_second), "rate": round(rate), "latency_seconds": _latency(request, session, rate, progress)}
    session.stop()
    return found


def _throughput(request: ScalingRequest, session: Any, progress: Progress) -> float:
    events = (request.warmup + request.epochs + 1) * request.epoch_events
    source = WorkloadSource(request.workload, events=events, paced=False, epoch_rows=request.epoch_events)
    ends: list[float] = []

    def note(done: EpochDone) -> None:
        ends.append(time.monotonic())
        progress(done.epoch)

    with _start(request, session, source, "full", None) as flow:
        flow.on_epoch(note)
        taken = flow.process_available()
    if taken.rows_in != events:
        raise md.Corrupted(f"{request.system}: {taken.rows_in} events were processed, there were {events}")
    return request.epochs * request.epoch_events / sum(intervals(ends, request.warmup, request.epochs))


def _latency(request: ScalingRequest, session: Any, rate: float, progress: Progress) -> Json:
    source = WorkloadSource(replace(request.workload, rate=rate))
    epochs: list[Published] = []

    def note(done: EpochDone) -> None:
        born = [split.born for _, split in done.decision.splits]
        end = time.time() - done.seconds["tidy"]
        epochs.append(Published(end, done.decision.rows, min(first for first, _ in born), max(last for _, last in born)))
        progress(done.epoch)

    with _start(request, session, source, "steady", 0.0) as flow:
        flow.on_epoch(note)
        began = time.time()
        flow.await_termination(request.seconds)
    return latency_numbers([epoch for epoch in epochs if epoch.end - began > _WARM_SHARE * request.seconds])


def _start(request: ScalingRequest, session: Any, source: WorkloadSource, name: str, trigger: float | None) -> Any:
    flow = build_flow(source, md.discard(), stateful=request.shape == "count")
    return flow.start(Path(request.folder) / name, spark=session, parallelism=request.slots, trigger=trigger, idle_poll=0.02)
