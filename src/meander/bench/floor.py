"""The floor: the cost of an epoch with hardly any input, Meander beside Spark's own stateful
micro-batch.

1,000 events per epoch, one file each, epochs back to back. The time of an epoch is from the end of the one before to its own end.
A JVM gets faster for dozens of small jobs, so the warm-up is long, for all systems alike.
"""

from __future__ import annotations

import argparse

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epoch-events", type=int, default=1_000, help="events per epoch (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=60, help="epochs that are measured (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=40, help="epochs before them (default: %(default)s)")
    add_peer_arguments(parser)
    add_common_arguments(parser, rounds=3)


def run(arguments: argparse.Namespace) -> Report:
    peers = chosen_peers(arguments)
    at_least_one(arguments, "epoch_events", "keys", "epochs", "warmup")
    tried_settings(arguments)
    facts = machine_facts()
    epochs = arguments.warmup + arguments.epochs + 1
    with work_folder(arguments.folder) as folder:
        say(f"writing {epochs} epochs of {arguments.epoch_events:,} events")
        phase = Phase(epochs, epochs * arguments.epoch_events, arguments.keys)
        source = write_input(folder / "input", [phase], files_per_epoch=1, seed=arguments.seed)
        results = run_rounds(arguments, [OURS, *peers], source, folder, _measure(arguments))
    systems = {system: {**over_rounds(rounds), "by_round": rounds} for system, rounds in results.items()}
    ratios = {peer: round(systems[peer]["epoch_seconds"] / systems[OURS]["epoch_seconds"], 2) for peer in peers}
    config = {
        **options(arguments, "epoch_events", "keys", "epochs", "warmup"),
        "peers": peer_configuration(arguments, peers),
        "machine": facts,
    }
    return Report("floor", config, arguments.rounds, systems, ratios, _tables(systems, ratios), _notes(arguments))


def _measure(arguments: argparse.Namespace) -> Measure:
    def measure(system: str, answer: Json) -> Json:
        seconds = intervals([epoch["end"] for epoch in answer["epochs"]], arguments.warmup, arguments.epochs)
        counted = answer["epochs"][arguments.warmup : arguments.warmup + arguments.epochs]
        parts = [split_parts(epoch, whole * 1000, arguments.parallelism) for epoch, whole in zip(counted, seconds, strict=True)]
        numbers: Json = {
            **epoch_times(seconds),
            "wall_ms": median_parts(parts),
            "task_ms": median_parts([epoch["task_ms"] for epoch in counted]),
        }
        say(f"  epochs of {numbers['epoch_seconds'] * 1000:.0f} ms")
        return numbers

    return measure


def split_parts(epoch: Json, whole: float, parallelism: int) -> dict[str, float]:
    """An epoch's wall time by part, in milliseconds: the parts that the system names, and the rest.

    Of Meander's ``run`` the tasks' own work is known (it happens in ``parallelism`` slots side by side); the rest is Spark's: building
    the job, scheduling, reaching the Python workers, bringing results back. Between epochs are the next decision and the loop.

    >>> split_parts({"wall_ms": {"run": 100.0, "commit": 5.0}, "task_ms": {"read": 30.0, "fold": 10.0}}, 107.0, 2)
    {'run: Spark': 80.0, 'run: tasks': 20.0, 'commit': 5.0, 'between epochs': 2.0}
    """
    named: dict[str, float] = dict(epoch["wall_ms"])
    between = max(0.0, whole - sum(named.values()))
    split = {}
    if "run" in named:
        tasks = min(named["run"], sum(epoch["task_ms"].values()) / parallelism)
        split = {"run: Spark": named.pop("run") - tasks, "run: tasks": tasks}
    return {**split, **named, "between epochs": between}


def _tables(systems: dict[str, Json], ratios: dict[str, float]) -> list[Table]:
    rows = [
        (
            name,
            *(f"{numbers[value] * 1000:.0f}" for value in ("epoch_seconds", "epoch_seconds_p95", "epoch_seconds_max")),
            f"{ratios[name]:.2f}×" if name in ratios else "",
        )
        for name, numbers in systems.items()
    ]
    main = Table(("system", "epoch ms", "p95 ms", "max ms", "Meander is faster by"), tuple(rows))
    parts = [parts_table("wall ms per epoch", systems, "wall_ms"), parts_table("task ms per epoch, all tasks", systems, "task_ms")]
    return [main, *(table for table in parts if table is not None)]


def _notes(arguments: argparse.Namespace) -> list[str]:
    return [
        f"Medians of {arguments.rounds} rounds; per round {arguments.epochs} epochs of {arguments.epoch_events:,} events "
        f"after {arguments.warmup} of warm-up. State on disk after every epoch; every run verified."
    ]
