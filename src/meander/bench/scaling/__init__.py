"""Scaling: throughput and tail latency with more and more slots, without state (source → map → sink) and with it (source → count → sink).

Every event takes --cpu-us microseconds of computing, measured in CPU time: more slots than cores
bring nothing. Each number of slots has a process of its own, with as many task threads as slots. At
full speed it shows its throughput; then events come at one rate, the same for all numbers of slots:
--share of the full speed with the fewest slots. The ratios are throughput over that of the fewest.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import meander as md
from meander.bench.harness.isolation import run_isolated
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import OURS, say, work_folder
from meander.bench.harness.statistics import Json, over_rounds
from meander.bench.load.workload import Workload
from meander.bench.scaling.request import ScalingRequest

SHAPES = ("map", "count")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slots", default="1,2,4", help="numbers of slots, separated by commas (default: %(default)s)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="flows without state (map) and with it (count) (default: %(default)s)")
    parser.add_argument("--cpu-us", type=int, default=50, help="microseconds of computing per event (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct keys (default: %(default)s)")
    parser.add_argument(
        "--skew", type=float, default=0.0, help="exponent of Zipf's law for the keys; 0 for all alike (default: %(default)s)"
    )
    parser.add_argument("--epoch-events", type=int, default=20_000, help="events per epoch at full speed (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=15, help="epochs that are measured at full speed (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=5, help="epochs before them (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long latency is measured (default: %(default)s)")
    parser.add_argument(
        "--share", type=float, default=0.6, help="the rate at which latency is measured, as a share of full speed (default: %(default)s)"
    )
    parser.add_argument(
        "--master", default="local[{slots}]", help="Spark's master; {slots} is replaced by their number (default: %(default)s)"
    )
    parser.add_argument("--memory", default="1g", help="heap of the JVM (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is measured (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the events (default: %(default)s)")
    parser.add_argument("--folder", help="where state is put and left; by default a temporary folder, removed at the end")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that one run may take (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    slots, shapes = chosen_slots(arguments.slots), chosen_shapes(arguments.shapes)
    check_numbers(arguments)
    facts = machine_facts()
    rounds: dict[str, dict[str, list[Json]]] = {shape: {str(count): [] for count in slots} for shape in shapes}
    with work_folder(arguments.folder) as folder:
        for number in range(arguments.rounds):
            for shape in shapes:
                rate: float | None = None
                for count in slots:
                    title = f"round {number + 1} of {arguments.rounds}, {shape}, slots {count}"
                    request = _request(arguments, shape, count, rate, folder / f"{number}-{shape}-{count}")
                    found = _measure(request, arguments.timeout, title)
                    rate = float(found["rate"])
                    rounds[shape][str(count)].append(found)
    ours: Json = {shape: {count: over_rounds(found) for count, found in by_slots.items()} for shape, by_slots in rounds.items()}
    ratios = speed_ups(ours)
    names = ("cpu_us", "keys", "skew", "epoch_events", "epochs", "warmup", "seconds", "share", "master", "memory", "seed")
    config = {"slots": slots, "shapes": shapes, **{name: getattr(arguments, name) for name in names}, "machine": facts}
    return Report("scaling", config, arguments.rounds, {OURS: ours}, ratios, [_table(ours, ratios)], _notes(arguments, facts))


def chosen_slots(text: str) -> list[int]:
    """
    >>> chosen_slots("4, 1,2")
    [1, 2, 4]
    """
    try:
        slots = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError as error:
        raise md.ConfigError(f"--slots {text}: write whole numbers, separated by commas, such as 1,2,4") from error
    if not slots or slots[0] < 1:
        raise md.ConfigError(f"--slots {text}: give at least one number above 0")
    return slots


def chosen_shapes(text: str) -> list[str]:
    shapes = [part.strip() for part in text.split(",") if part.strip()]
    for shape in shapes:
        if shape not in SHAPES:
            raise md.ConfigError(f"--shapes {shape}: there is no such shape; there are {', '.join(SHAPES)}")
    if not shapes:
        raise md.ConfigError(f"--shapes is empty: give some of {', '.join(SHAPES)}")
    return shapes


def check_numbers(arguments: argparse.Namespace) -> None:
    for name in ("keys", "epoch_events", "epochs", "warmup", "rounds"):
        if getattr(arguments, name) < 1:
            raise md.ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least 1")
    for name in ("seconds", "share", "timeout"):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise md.ConfigError(f"--{name} {getattr(arguments, name):g}: must be above 0")


def speed_ups(ours: Json) -> dict[str, float]:
    """Throughput over that of the fewest slots, by shape.

    >>> speed_ups({"map": {"1": {"events_per_second": 100}, "2": {"events_per_second": 180}}})
    {'map 2/1': 1.8}
    """
    ratios = {}
    for shape, by_slots in ours.items():
        (fewest, base), *others = by_slots.items()
        for count, numbers in others:
            ratios[f"{shape} {count}/{fewest}"] = round(numbers["events_per_second"] / base["events_per_second"], 2)
    return ratios


def _request(arguments: argparse.Namespace, shape: str, slots: int, rate: float | None, folder: Path) -> ScalingRequest:
    workload = Workload(arguments.keys, arguments.skew, cpu_us=arguments.cpu_us, partitions=slots, seed=arguments.seed)
    return ScalingRequest(
        shape,
        workload,
        str(folder),
        arguments.master.replace("{slots}", str(slots)),
        arguments.memory,
        slots,
        arguments.epoch_events,
        arguments.epochs,
        arguments.warmup,
        arguments.seconds,
        arguments.share,
        rate,
    )


def _measure(request: ScalingRequest, timeout: float, title: str) -> Json:
    live = sys.stderr.isatty()
    say(f"{title}: ", end="")
    answer = run_isolated(request, timeout, lambda epoch: say(f"\r{title}: epoch {epoch} ", end="") if live else None)
    late = answer["latency_seconds"]
    say(
        f"{answer['events_per_second']:,} events/s; at {answer['rate']:,} events/s "
        f"latency p50 {late['p50'] * 1000:.0f} ms, p99 {late['p99'] * 1000:.0f} ms"
    )
    for name in ("full", "steady"):
        shutil.rmtree(Path(request.folder) / name, ignore_errors=True)
    return answer


def _table(ours: Json, ratios: dict[str, float]) -> Table:
    rows = []
    for shape, by_slots in ours.items():
        fewest = next(iter(by_slots))
        for count, numbers in by_slots.items():
            late = numbers["latency_seconds"]
            speed_up = ratios.get(f"{shape} {count}/{fewest}", 1.0)
            milliseconds = (f"{late[value] * 1000:,.0f}" for value in ("p50", "p99", "max"))
            rows.append(
                (
                    f"{shape}, {count} slots",
                    f"{numbers['events_per_second']:,.0f}",
                    f"{speed_up:.2f}×",
                    f"{numbers['rate']:,.0f}",
                    *milliseconds,
                )
            )
    return Table(("flow", "events/s", "speed-up", "at events/s", "p50 ms", "p99 ms", "max ms"), tuple(rows))


def _notes(arguments: argparse.Namespace, facts: Json) -> list[str]:
    return [
        f"{arguments.cpu_us} µs of computing per event, {facts['cores']} cores: more slots than cores cannot bring more. "
        f"Throughput over {arguments.epochs} epochs of {arguments.epoch_events:,} events; "
        f"latency over {arguments.seconds:g} s at one rate for all."
    ]
