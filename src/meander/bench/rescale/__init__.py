"""Rescale: the cost of a change of the parallelism under a steady load, by strategy, beside Spark's
own way.

Each strategy has a process of its own: the state is loaded, then events come at a steady rate, while the operator goes from --from to
--to slots and back. Executors are processes of their own, and the store is a folder behind a slow line. Latency is from the moment at
which an event was due to the publication of its epoch. A rescale lasts from the request until 5 s after it is in force.

The peer spark-repartition is the same count, sum and bytes per key in Structured Streaming with RocksDB: stopped, its checkpoint
repartitioned offline, started again. The ratio is its longest gap in output over that of hybrid.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import meander as md
from meander.bench.harness.isolation import run_isolated
from meander.bench.harness.latency import Change, Published, describe_change, within
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import say, work_folder
from meander.bench.harness.statistics import Json, over_rounds
from meander.bench.load.workload import Workload
from meander.bench.rescale.request import OURS, PEER, RescaleRequest
from meander.coordinate.migration import check_strategy
from meander.settings import STRATEGIES, Strategy

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_ENOUGH = 5
"""Epochs that a steady time must have to be compared with."""
_FIXED_BYTES = 50
"""The bytes of a key in the state beside its junk: hash, key, count, sum and the place of its
bytes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", default="100MB,1GB", help="sizes of the state, separated by commas (default: %(default)s)")
    parser.add_argument("--from", dest="before", type=int, default=1, metavar="N", help="slots before the rescale (default: %(default)s)")
    parser.add_argument("--to", dest="after", type=int, default=2, metavar="N", help="slots after it (default: %(default)s)")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="how state moves, separated by commas (default: %(default)s)")
    parser.add_argument("--against", default=PEER, help="the peer, or empty for none (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=2_000.0, help="events per second (default: %(default)s)")
    parser.add_argument(
        "--skew", type=float, default=0.0, help="exponent of Zipf's law for the keys; 0 for all alike (default: %(default)s)"
    )
    parser.add_argument("--junk", type=int, default=950, help="bytes that every key holds in the state (default: %(default)s)")
    parser.add_argument(
        "--cpu-us", type=int, default=100, help="microseconds of computing per event, not of the peer's (default: %(default)s)"
    )
    parser.add_argument("--warmup", type=float, default=20.0, help="seconds of the load before anything is measured (default: %(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="seconds before the first rescale, between the two and after the second (default: %(default)s)",
    )
    parser.add_argument("--latency-ms", type=float, default=5.0, help="what every call to the store takes (default: %(default)s)")
    parser.add_argument("--mb-per-s", type=float, default=200.0, help="bandwidth of the store (default: %(default)s)")
    parser.add_argument("--master", default="local-cluster[2,1,1024]", help="Spark's master, for all systems (default: %(default)s)")
    parser.add_argument("--memory", default="1g", help="heap of the driver's JVM, for all systems (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is measured (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the events (default: %(default)s)")
    parser.add_argument("--folder", help="where input and state are put and left; by default a temporary folder, removed at the end")
    parser.add_argument(
        "--patience", type=float, default=120.0, help="seconds that the loading or one rescale may take (default: %(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds that one run of one system may take (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    sizes, strategies, peers = chosen_sizes(arguments.state), chosen_strategies(arguments.strategies), chosen_peer(arguments.against)
    check_numbers(arguments)
    facts = machine_facts()
    found: dict[str, dict[str, list[Json]]] = {}
    with work_folder(arguments.folder) as folder:
        for number in range(arguments.rounds):
            for name, size in sizes.items():
                for strategy in [*strategies, *peers]:
                    title = f"round {number + 1} of {arguments.rounds}, {name}, {strategy or PEER}"
                    request = _request(arguments, size, strategy, folder / f"{number}-{name}-{strategy or PEER}")
                    numbers = _measure(request, arguments.timeout, title)
                    found.setdefault(name, {}).setdefault(strategy or PEER, []).append(numbers)
    systems: dict[str, Json] = {OURS: {}, **({PEER: {}} if peers else {})}
    for name, by_strategy in found.items():
        merged = {strategy: over_rounds(rounds) for strategy, rounds in by_strategy.items()}
        if peers:
            systems[PEER][name] = merged.pop(PEER)
        systems[OURS][name] = merged
    ratios = gap_ratios(systems, strategies)
    config = {
        name: getattr(arguments, name)
        for name in (
            "before",
            "after",
            "rate",
            "skew",
            "junk",
            "cpu_us",
            "warmup",
            "seconds",
            "latency_ms",
            "mb_per_s",
            "master",
            "memory",
            "seed",
        )
    }
    config = {"state": sizes, "strategies": strategies, **config, "machine": facts}
    return Report("rescale", config, arguments.rounds, systems, ratios, [_table(name, systems) for name in sizes], _notes(arguments))


# -- what was asked for ----------------------------------------------------------------------------------------------


def chosen_sizes(text: str) -> dict[str, int]:
    """
    >>> chosen_sizes("100MB, 1gb")
    {'100MB': 100000000, '1gb': 1000000000}
    """
    sizes = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", part.lower())
        if match is None or match.group(2) not in _UNITS:
            raise md.ConfigError(f"--state {part}: write a size such as 100MB or 1GB")
        sizes[part] = round(float(match.group(1)) * _UNITS[match.group(2)])
    if not sizes or min(sizes.values()) < 1:
        raise md.ConfigError(f"--state {text}: give at least one size, such as 100MB")
    return sizes


def chosen_strategies(text: str) -> list[Strategy]:
    strategies = [check_strategy(part.strip()) for part in text.split(",") if part.strip()]
    if not strategies:
        raise md.ConfigError(f"--strategies is empty: give some of {', '.join(STRATEGIES)}")
    return strategies


def chosen_peer(text: str) -> list[None]:
    """The peer as a strategy that is none, if it is asked for."""
    if text.strip() not in ("", PEER):
        raise md.ConfigError(f"--against {text}: there is no such peer; there is {PEER}")
    return [None] if text.strip() else []


def check_numbers(arguments: argparse.Namespace) -> None:
    for name, option, least in (
        ("before", "from", 1),
        ("after", "to", 1),
        ("rounds", "rounds", 1),
        ("junk", "junk", 0),
        ("cpu_us", "cpu-us", 0),
    ):
        if getattr(arguments, name) < least:
            raise md.ConfigError(f"--{option} {getattr(arguments, name)}: must be at least {least}")
    for name in ("rate", "seconds", "mb_per_s", "patience", "timeout"):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise md.ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name):g}: must be above 0")
    if arguments.before == arguments.after:
        raise md.ConfigError(f"--from {arguments.before} --to {arguments.after}: that is no rescale; give two different numbers")
    if not re.match(r"local-cluster\[", arguments.master) and arguments.master.startswith("local"):
        raise md.ConfigError(
            f"--master {arguments.master}: state moves between executors: give at least two, such as local-cluster[2,1,1024]"
        )


def _request(arguments: argparse.Namespace, size: int, strategy: Strategy | None, folder: Path) -> RescaleRequest:
    workload = Workload(
        keys=max(1, size // (arguments.junk + _FIXED_BYTES)),
        skew=arguments.skew,
        rate=arguments.rate,
        junk=arguments.junk,
        cpu_us=arguments.cpu_us,
        partitions=2,
        seed=arguments.seed,
    )
    return RescaleRequest(
        strategy,
        workload,
        str(folder),
        arguments.master,
        arguments.memory,
        (arguments.before, arguments.after),
        arguments.warmup,
        arguments.seconds,
        arguments.latency_ms,
        arguments.mb_per_s,
        arguments.patience,
    )


# -- what was found --------------------------------------------------------------------------------------------------


def _measure(request: RescaleRequest, timeout: float, title: str) -> Json:
    answer = run_isolated(request, timeout, lambda text: say(f"{title}: {text}") if isinstance(text, str) else None)
    for name in ("store", "checkpoint", "input"):
        shutil.rmtree(Path(request.folder) / name, ignore_errors=True)
    numbers = describe(answer)
    for way, one in numbers["rescales"].items():
        gaps, late = one["gap_seconds"], one["latency_seconds"]
        say(
            f"  {way}: longest gap {gaps['during']:.2f} s (before: {gaps['before']:.2f} s), "
            f"p99 {late['during']['p99']:.2f} s (before: {late['before']['p99']:.2f} s), "
            f"above steady for {one['back_at_steady_seconds']:.2f} s"
        )
    return numbers


def describe(answer: Json) -> Json:
    """One run's numbers: both directions, and its epochs over time, from the first moment that was measured."""
    epochs = [Published(e["end"], e["rows"], e["first"], e["last"]) for e in answer["epochs"]]
    changes = [Change(change["asked"], change["in_force"]) for change in answer["changes"]]
    origin, end = answer["measured_from"], epochs[-1].end + 1e-3
    after, before = (change["slots"] for change in answer["changes"])
    numbers: Json = {"state_bytes": answer["state_bytes"], "rescales": {}}
    first = (origin, changes[0].asked)
    # The second rescale is compared with the same length of time right before it: the effect of the
    # first one is over by then.
    between = (max(changes[0].over, changes[1].asked - (changes[0].asked - origin)), changes[1].asked)
    steady = (first, between if len(within(epochs, *between)) >= _ENOUGH else first)
    for nth, (way, until) in enumerate(((f"{before}->{after}", changes[1].asked), (f"{after}->{before}", end))):
        numbers["rescales"][way] = {
            **describe_change(epochs, changes[nth], steady[nth], until),
            **_moved(answer["epochs"], answer["changes"][nth], until),
        }
    numbers["timeline"] = [
        [round(e.end - origin, 3), e.rows, round(e.worst, 3), round(e.end - e.last, 3)] for e in epochs if e.end >= origin
    ]
    numbers["changes"] = [{"asked": round(c.asked - origin, 3), "in_force": round(c.in_force - origin, 3)} for c in changes]
    return numbers


def _moved(epochs: list[Json], change: Json, until: float) -> Json:
    """Bytes that a rescale moved, ahead of their use and on first use, and when the new number of slots was first at work."""
    if "epoch" not in change:  # the peer moves everything, and says where its time went
        return {"parts_seconds": {name: round(value, 3) for name, value in change["parts"].items()}, "drained": change["drained"]}
    since = [epoch for epoch in epochs if change["asked"] <= epoch["end"] < until]
    carried = next((epoch["end"] for epoch in since if epoch["slots"] == change["slots"]), None)
    return {
        "carries_load_seconds": None if carried is None else round(carried - change["asked"], 3),
        "moved_bytes": {
            origin: change[f"fetched_from_{origin}"] + sum(epoch[f"fetched_from_{origin}"] for epoch in since)
            for origin in ("peers", "store")
        },
        "key_groups": change["key_groups"],
        "failures": len(change["failures"]),
    }


def gap_ratios(systems: dict[str, Json], strategies: Sequence[str]) -> dict[str, float]:
    """The peer's longest gap over ours with ``hybrid`` (or the last strategy that was measured), at the largest state; then by size."""
    if PEER not in systems:
        return {}
    ours = "hybrid" if "hybrid" in strategies else strategies[-1]

    def gap(numbers: Json) -> float:
        return max(float(one["gap_seconds"]["during"]) for one in numbers["rescales"].values())

    by_size = {name: round(gap(systems[PEER][name]) / gap(systems[OURS][name][ours]), 2) for name in systems[PEER]}
    *_, largest = by_size.values()
    return {PEER: largest, **({f"{PEER} {name}": ratio for name, ratio in by_size.items()} if len(by_size) > 1 else {})}


def _table(size: str, systems: dict[str, Json]) -> Table:
    rows = []
    for name, numbers in [*systems[OURS][size].items(), *((PEER, systems[PEER][size]) for _ in [0] if PEER in systems)]:
        for way, one in numbers["rescales"].items():
            gaps, late, moved = one["gap_seconds"], one["latency_seconds"], one.get("moved_bytes")
            carried = one.get("carries_load_seconds", one["in_force_seconds"])
            rows.append(
                (
                    f"{name} {way}",
                    *(f"{gaps[part]:.2f}" for part in ("before", "during", "after")),
                    *(f"{late[part]['p50']:.2f}/{late[part]['p99']:.2f}/{late[part]['max']:.2f}" for part in ("before", "during", "after")),
                    f"{one['back_at_steady_seconds']:.2f}",
                    "?" if carried is None else f"{carried:.2f}",
                    "all" if moved is None else f"{moved['peers'] / 1e6:,.1f} + {moved['store'] / 1e6:,.1f}",
                )
            )
    columns = (
        f"state {size}",
        "gap s before",
        "during",
        "after",
        "p50/p99/max s before",
        "during",
        "after",
        "above steady s",
        "carries load s",
        "MB from peers + store",
    )
    return Table(columns, tuple(rows))


def _notes(arguments: argparse.Namespace) -> list[str]:
    return [
        f"{arguments.rate:,.0f} events/s, {arguments.before} → {arguments.after} slots and back, {arguments.seconds:g} s before, "
        f"between and after; store: {arguments.latency_ms:g} ms per call, {arguments.mb_per_s:g} MB/s. "
        "During is from the request to 5 s after it is in force. Every run verified: each event is in the state once.",
    ]
