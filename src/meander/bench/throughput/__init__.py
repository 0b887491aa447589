"""Throughput: keyed count and sum over Parquet, Meander beside Spark's own aggregation.

Every system is measured over ``--events`` events in epochs of ``--epoch-events``, from the end of
the warm-up epochs to the end of the last measured one, in a run that goes on for one more epoch.
Warm-up epochs and that last one come on top of the measured events. State is durable on disk after
every epoch, output goes nowhere, and every run is verified.
"""

from __future__ import annotations

import argparse

import meander as md
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table, parts_table
from meander.bench.harness.rounds import (
    OURS,
    Measure,
    add_common_arguments,
    add_peer_arguments,
    at_least_one,
    chosen_peers,
    options,
    peer_configuration,
    run_rounds,
    say,
    tried_settings,
    work_folder,
)
from meander.bench.harness.statistics import Json, epoch_times, intervals, median_parts, over_rounds
from meander.bench.load.input import Phase, write_input

FILES_PER_EPOCH = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=10_000_000, help="events that are measured (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys (default: %(default)s)")
    parser.add_argument(
        "--skew", type=float, default=0.0, help="exponent of Zipf's law for the keys; 0 for all alike (default: %(default)s)"
    )
    parser.add_argument("--epoch-events", type=int, default=1_000_000, help="events per epoch (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="epochs before the measured ones (default: %(default)s)")
    add_peer_arguments(parser)
    add_common_arguments(parser, rounds=3)


def run(arguments: argparse.Namespace) -> Report:
    peers, measured = chosen_peers(arguments), check_sizes(arguments)
    tried_settings(arguments)
    facts = machine_facts()
    epochs = arguments.warmup + measured + 1
    with work_folder(arguments.folder) as folder:
        say(f"writing {epochs} epochs of {arguments.epoch_events:,} events over {arguments.keys:,} keys")
        phase = Phase(epochs, epochs * arguments.epoch_events, arguments.keys, arguments.skew)
        source = write_input(folder / "input", [phase], FILES_PER_EPOCH, arguments.seed)
        results = run_rounds(arguments, [OURS, *peers], source, folder, _measure(arguments, measured))
    systems = {system: {**over_rounds(rounds), "by_round": rounds} for system, rounds in results.items()}
    ratios = {peer: round(systems[OURS]["events_per_second"] / systems[peer]["events_per_second"], 2) for peer in peers}
    config = {
        **options(arguments, "events", "keys", "skew", "epoch_events", "warmup"),
        "measured_epochs": measured,
        "peers": peer_configuration(arguments, peers),
        "machine": facts,
    }
    return Report("throughput", config, arguments.rounds, systems, ratios, _tables(systems, ratios), _notes(arguments, measured))


def check_sizes(arguments: argparse.Namespace) -> int:
    """How many epochs are measured."""
    at_least_one(arguments, "events", "keys", "epoch_events", "warmup")
    if arguments.epoch_events < FILES_PER_EPOCH:
        raise md.ConfigError(f"--epoch-events must be at least {FILES_PER_EPOCH}: an epoch is {FILES_PER_EPOCH} files")
    measured, rest = divmod(arguments.events, arguments.epoch_events)
    if rest or measured < 1:
        raise md.ConfigError(f"--events {arguments.events} must be a multiple of --epoch-events {arguments.epoch_events}")
    return int(measured)


def _measure(arguments: argparse.Namespace, measured: int) -> Measure:
    def measure(system: str, answer: Json) -> Json:
        seconds = intervals([epoch["end"] for epoch in answer["epochs"]], arguments.warmup, measured)
        counted = answer["epochs"][arguments.warmup : arguments.warmup + measured]
        numbers: Json = {
            "events_per_second": round(sum(epoch["rows_in"] for epoch in counted) / sum(seconds)),
            **epoch_times(seconds),
            "wall_ms": median_parts([epoch["wall_ms"] for epoch in counted]),
            "task_ms": median_parts([epoch["task_ms"] for epoch in counted]),
        }
        say(f"  {numbers['events_per_second']:,} events/s, epochs of {numbers['epoch_seconds']:.3f} s")
        return numbers

    return measure


def _tables(systems: dict[str, Json], ratios: dict[str, float]) -> list[Table]:
    rows = [
        (
            name,
            f"{numbers['events_per_second']:,.0f}",
            f"{numbers['epoch_seconds']:.3f}",
            f"{numbers['epoch_seconds_p95']:.3f}",
            f"{ratios[name]:.2f}×" if name in ratios else "",
        )
        for name, numbers in systems.items()
    ]
    main = Table(("system", "events/s", "epoch s", "p95 s", "Meander is faster by"), tuple(rows))
    parts = [parts_table("wall ms per epoch", systems, "wall_ms"), parts_table("task ms per epoch, all tasks", systems, "task_ms")]
    return [main, *(table for table in parts if table is not None)]


def _notes(arguments: argparse.Namespace, measured: int) -> list[str]:
    return [
        f"Medians of {arguments.rounds} rounds; per round {measured} epochs of {arguments.epoch_events:,} events "
        f"after {arguments.warmup} of warm-up. State on disk after every epoch; every run verified."
    ]
