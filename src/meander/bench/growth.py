"""Growth: does an epoch cost more when there is more state? Meander with itself, at a fixed epoch size and growing numbers of keys.

Each size has a process of its own: first every key is loaded once, in big epochs, then epochs of ``--epoch-events`` with keys
uniform over all are measured at once, while what the loading left to compaction is still being merged. The ratio is the median
epoch at the largest state over that at the reference (100k keys, where measured): 1.0 is flat, and above 1 is worse.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import meander as md
from meander.bench.harness.isolation import Request
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table, short
from meander.bench.harness.rounds import OURS, add_common_arguments, at_least_one, measure_one, options, say, work_folder
from meander.bench.harness.statistics import Json, epoch_times, intervals, median, median_parts, over_rounds
from meander.bench.load.input import Phase, write_input

_REFERENCE = 100_000
_LOAD_EVENTS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys", default="10000,100000,1000000,10000000", help="sizes of the state, separated by commas (default: %(default)s)"
    )
    parser.add_argument("--epoch-events", type=int, default=100_000, help="events per measured epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=40, help="epochs that are measured per size (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=10, help="epochs of the measured size before them (default: %(default)s)")
    add_common_arguments(parser, rounds=1)


def run(arguments: argparse.Namespace) -> Report:
    sizes = chosen_sizes(arguments.keys)
    at_least_one(arguments, "epoch_events", "epochs", "warmup")
    facts = machine_facts()
    rounds: dict[int, list[Json]] = {size: [] for size in sizes}
    with work_folder(arguments.folder) as folder:
        for number in range(arguments.rounds):
            for size in sizes if number % 2 == 0 else reversed(sizes):
                title = f"round {number + 1} of {arguments.rounds}, {short(size)} keys"
                rounds[size].append(_measure(arguments, size, folder, f"{number}-{size}", title))
    by_size: Json = {short(size): {"keys": size, **over_rounds(found), "by_round": found} for size, found in rounds.items()}
    reference = _REFERENCE if _REFERENCE in sizes else sizes[0]
    times = {size: by_size[short(size)]["epoch_seconds"] for size in sizes}
    ratios = {f"{short(size)}/{short(reference)}": round(times[size] / times[reference], 2) for size in sizes if size > reference}
    config = {**options(arguments, "epoch_events", "epochs", "warmup"), "keys": sizes, "machine": facts}
    return Report("growth", config, arguments.rounds, {OURS: by_size}, ratios, [_table(by_size)], _notes(arguments, ratios))


def chosen_sizes(text: str) -> list[int]:
    """
    >>> chosen_sizes("100000, 10000")
    [10000, 100000]
    """
    try:
        sizes = sorted({int(part) for part in text.replace("_", "").split(",") if part.strip()})
    except ValueError as error:
        raise md.ConfigError(f"--keys {text}: write whole numbers, separated by commas, such as 10000,1000000") from error
    if not sizes or sizes[0] < 1:
        raise md.ConfigError(f"--keys {text}: give at least one number above 0")
    return sizes


def _measure(arguments: argparse.Namespace, size: int, folder: Path, name: str, title: str) -> Json:
    loading = -(-size // _LOAD_EVENTS)
    count = arguments.warmup + arguments.epochs + 1
    phases = [Phase(loading, size, size, once=True), Phase(count, count * arguments.epoch_events, size)]
    source = write_input(folder / f"input-{name}", phases, seed=arguments.seed)
    before = loading + arguments.warmup
    request = Request(
        OURS, source, str(folder / name), arguments.master, arguments.parallelism, arguments.memory, watch_memory_after=before
    )
    answer = measure_one(request, arguments.timeout, title)
    seconds = intervals([epoch["end"] for epoch in answer["epochs"]], before, arguments.epochs)
    measured = answer["epochs"][before : before + arguments.epochs]
    numbers: Json = {
        **epoch_times(seconds),
        "keys_touched": median([epoch["rows_out"] for epoch in measured]),
        "runs_per_slot": median([epoch["runs_per_slot"] for epoch in measured]),
        "runs_per_slot_max": max(epoch["runs_per_slot"] for epoch in measured),
        "state_bytes": answer["state_bytes"],
        "worker_anonymous_bytes_max": answer["worker_bytes"],
        "wall_ms": median_parts([epoch["wall_ms"] for epoch in measured]),
        "task_ms": median_parts([epoch["task_ms"] for epoch in measured]),
        "epochs_ms": [round(second * 1000, 1) for second in seconds],
    }
    say(f"  epochs of {numbers['epoch_seconds'] * 1000:.0f} ms, the longest {numbers['max_over_median']:.1f} times that")
    return numbers


def _table(by_size: Json) -> Table:
    rows = [
        (
            name,
            f"{numbers['keys_touched']:,.0f}",
            *(f"{numbers[value] * 1000:.0f}" for value in ("epoch_seconds", "epoch_seconds_p95", "epoch_seconds_max")),
            f"{numbers['max_over_median']:.1f}",
            f"{numbers['runs_per_slot']:.0f} (≤ {numbers['runs_per_slot_max']:.0f})",
            f"{numbers['state_bytes'] / 1e6:,.0f}",
            "?" if numbers["worker_anonymous_bytes_max"] is None else f"{numbers['worker_anonymous_bytes_max'] / 1e6:,.0f}",
        )
        for name, numbers in by_size.items()
    ]
    return Table(
        (
            "keys in state",
            "touched per epoch",
            "epoch ms",
            "p95 ms",
            "max ms",
            "max/median",
            "runs per slot",
            "state MB",
            "worker MB at most",
        ),
        tuple(rows),
    )


def _notes(arguments: argparse.Namespace, ratios: dict[str, float]) -> list[str]:
    flat = ", ".join(f"{name} = {ratio:g}" for name, ratio in ratios.items())
    return [
        f"{arguments.epochs} epochs of {arguments.epoch_events:,} events per size, after the loading and {arguments.warmup} of warm-up; "
        "worker memory is anonymous resident memory (RssAnon) of the largest Python worker.",
        *([f"Median epoch at the larger state over that at the smaller (1.0 is flat): {flat}."] if flat else []),
    ]
