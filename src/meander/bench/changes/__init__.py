"""Changes: the cost of sending removals to an operator behind an aggregate. Meander compared with
itself.

``alone`` is one aggregate per key. ``beside`` adds a second one over the same append-only rows,
``sum``, ``max``, ``top`` and ``join`` have one operator behind the first instead, which gets the
old and the new row of every touched key. Each flow has a process of its own over the same files.
The ratios are its median epoch over that of ``alone``: 1.0 is free, and above 1 is worse. Spark
refuses all four: an aggregate in update mode cannot be followed by another operator with state.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import meander as md
from meander.bench.changes.ours import KINDS, ChangesRequest
from meander.bench.harness.isolation import run_isolated
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import OURS, add_common_arguments, at_least_one, options, say, work_folder
from meander.bench.harness.statistics import Json, epoch_times, intervals, median, over_rounds
from meander.bench.load.input import Phase, write_input

_WARMUP = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the first aggregate (default: %(default)s)")
    parser.add_argument("--epoch-events", type=int, default=100_000, help="events per epoch (default: %(default)s)")
    parser.add_argument(
        "--epochs", type=int, default=12, help=f"epochs that are measured, after {_WARMUP} of warm-up (default: %(default)s)"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="flows, separated by commas (default: %(default)s)")
    add_common_arguments(parser, rounds=1)


def run(arguments: argparse.Namespace) -> Report:
    at_least_one(arguments, "keys", "epoch_events", "epochs")
    kinds = [kind.strip() for kind in arguments.kinds.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise md.ConfigError(f"--kinds {kind}: there is no such flow; there are {', '.join(KINDS)}")
    facts, count = machine_facts(), _WARMUP + arguments.epochs
    rounds: dict[str, list[Json]] = {kind: [] for kind in kinds}
    with work_folder(arguments.folder) as folder:
        phases = [Phase(count, count * arguments.epoch_events, arguments.keys)]
        source = write_input(folder / "input", phases, seed=arguments.seed)
        for number in range(arguments.rounds):
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                place = str(Path(folder) / f"{number}-{kind}")
                request = ChangesRequest(OURS, kind, source, place, arguments.master, arguments.parallelism, arguments.memory)
                say(f"round {number + 1} of {arguments.rounds}, {kind}: ", end="")
                numbers = _measure(run_isolated(request, arguments.timeout), arguments.epochs)
                rounds[kind].append(numbers)
                say(f"epochs of {numbers['epoch_seconds'] * 1000:.0f} ms")
    by_kind: Json = {kind: {**over_rounds(found), "by_round": found} for kind, found in rounds.items()}
    first = by_kind.get("alone")
    ratios = (
        {}
        if first is None
        else {
            f"{kind}/alone": round(numbers["epoch_seconds"] / first["epoch_seconds"], 2)
            for kind, numbers in by_kind.items()
            if kind != "alone"
        }
    )
    config = {**options(arguments, "keys", "epoch_events", "epochs"), "kinds": kinds, "machine": facts}
    notes = [f"{arguments.epochs} epochs of {arguments.epoch_events:,} events over {arguments.keys:,} keys, after {_WARMUP} of warm-up."]
    return Report("changes", config, arguments.rounds, {OURS: by_kind}, ratios, [_table(by_kind, ratios)], notes)


def _measure(answer: Json, epochs: int) -> Json:
    seconds = intervals([epoch["end"] for epoch in answer["epochs"]], _WARMUP, epochs)
    measured = answer["epochs"][_WARMUP : _WARMUP + epochs]
    return {
        **epoch_times(seconds),
        "rows_out": median([epoch["rows_out"] for epoch in measured]),
        "epochs_ms": [round(second * 1000, 1) for second in seconds],
    }


def _table(by_kind: Json, ratios: dict[str, float]) -> Table:
    rows = [
        (
            kind,
            *(f"{numbers[value] * 1000:.0f}" for value in ("epoch_seconds", "epoch_seconds_p95")),
            f"{numbers['rows_out']:,.0f}",
            f"{ratios.get(f'{kind}/alone', 1.0):.2f}",
        )
        for kind, numbers in by_kind.items()
    ]
    return Table(("flow", "epoch ms", "p95 ms", "rows out per epoch", "of alone"), tuple(rows))
