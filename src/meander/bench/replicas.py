"""The cost of replicas: the throughput of two replicas over a backlog, beside one run that has the
same cores as each of them.

All of a replica's processes are bound to its cores, so that no replica takes cores from another.
The backlog appears once all are up; its first epochs are not counted. Ratios: the replicas'
throughput over that of the one. Cores share memory and caches, though. Two independent runs at the
same time (``strangers``), each with a backlog of its own, show the cost of that.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import meander as md
from meander.bench.failover import Kept
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import add_common_arguments, say, work_folder
from meander.bench.harness.statistics import Json
from meander.bench.load.steady import Sight, account, meander_names, visible

SYSTEMS = {"alone": 1, "strangers": 2, "leaderless": 2, "leader": 2}
_UNCOUNTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=200_000, help="events per file and epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=120, help="files of the backlog (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=1, help="of each replica (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds that a system may take (default: %(default)s)")
    add_common_arguments(parser, rounds=3)
    parser.set_defaults(parallelism=1, memory="1g")


def run(arguments: argparse.Namespace) -> Report:
    for name in ("rows", "keys", "cores", "patience"):
        if not getattr(arguments, name) > 0:
            raise md.ConfigError(f"--{name} {getattr(arguments, name)}: must be above 0")
    if arguments.epochs < 2 * _UNCOUNTED:
        raise md.ConfigError(
            f"--epochs {arguments.epochs}: must be at least {2 * _UNCOUNTED}, since the first {_UNCOUNTED} are not counted"
        )
    there = sorted(os.sched_getaffinity(0))
    if len(there) < 2 * arguments.cores:
        raise md.ConfigError(f"--cores {arguments.cores}: two replicas need {2 * arguments.cores} cores, there are {len(there)}")
    facts = machine_facts()
    results: dict[str, Json] = {name: {"by_round": []} for name in SYSTEMS}
    with work_folder(arguments.folder) as folder:
        for number in range(arguments.rounds):
            for system in SYSTEMS:
                found = _measure(arguments, system, there, folder / f"{system}-{number}")
                results[system]["by_round"].append(found)
                say(f"{system}: {found['events_per_second']:,.0f} events/s, {found['lost']} lost, {found['doubled']} doubled")
    for numbers in results.values():
        numbers["events_per_second"] = statistics.median(found["events_per_second"] for found in numbers["by_round"])
    alone = results["alone"]["events_per_second"]
    ratios = {name: round(results[name]["events_per_second"] / alone, 2) for name in SYSTEMS if name != "alone"}
    names = ("rows", "epochs", "keys", "cores", "parallelism", "memory")
    config = {**{name: getattr(arguments, name) for name in names}, "machine": facts}
    return Report("replicas", config, arguments.rounds, results, ratios, [_table(results, ratios)], _notes(results))


def _measure(arguments: argparse.Namespace, system: str, there: list[int], folder: Path) -> Json:
    """One system over one backlog, or over one for each."""
    folder.mkdir(parents=True)
    server = None
    if system == "leader":
        from meander.replicate.zookeeper import EmbeddedZooKeeper

        server = EmbeddedZooKeeper(folder / "zookeeper")
    homes = [folder / name for name in ("ab" if system == "strangers" else "a")]
    for home in homes:
        (home / "in").mkdir(parents=True)
    sights = [Sight(home / "out", meander_names(arguments.parallelism), first=1).start() for home in homes]
    kept = []
    try:
        for number in range(SYSTEMS[system]):
            options: Json = {"replica": "ab"[number]} if system in ("leaderless", "leader") else {}
            if server is not None:
                options |= {"replication": "leader", "zookeeper": server.address}
            home = homes[number % len(homes)]
            asked = {
                "system": system,
                "name": "ab"[number],
                "input": str(home / "in"),
                "out": str(home / "out"),
                "folder": str(home),
                "master": f"local[{arguments.cores}]",
                "memory": arguments.memory,
                "parallelism": arguments.parallelism,
                "trigger": 0,
                "files_per_epoch": 1,
                "cores": there[number * arguments.cores : (number + 1) * arguments.cores],
                "options": options,
            }
            kept.append(Kept(asked))
        _wait(lambda: all(one.up.exists() for one in kept), kept, arguments.patience, "does not start")
        counts = _write([home / "in" for home in homes], arguments)
        _wait(lambda: all(len(sight.seen) >= arguments.epochs for sight in sights), kept, arguments.patience, "does not get through")
    finally:
        for sight in sights:
            sight.stop()
        for one in kept:
            one.let_go()
        if server is not None:
            server.close()
    accounts = [account(visible(home / "out"), counts) for home in homes]
    return {
        "events_per_second": round(statistics.mean(_throughput(sight, arguments) for sight in sights)),
        **{name: sum(found[name] for found in accounts) for name in ("lost", "doubled")},
    }


def _throughput(sight: Sight, arguments: argparse.Namespace) -> float:
    ends = [sight.seen[epoch] for epoch in sorted(sight.seen)]
    return float(arguments.rows * (arguments.epochs - _UNCOUNTED) / (ends[arguments.epochs - 1] - ends[_UNCOUNTED - 1]))


def _write(folders: Sequence[Path], arguments: argparse.Namespace) -> np.ndarray:
    """The backlog, which appears at once, in each folder: how many events there are of each key."""
    counts = np.zeros(arguments.keys, np.int64)
    for number in range(arguments.epochs):
        key = np.random.default_rng(number).integers(0, arguments.keys, arguments.rows)
        table = pa.table({"key": key, "born": np.full(arguments.rows, time.time())})
        for folder in folders:
            pq.write_table(table, folder / f".{number:06d}")
        np.add.at(counts, key, 1)
    for number in range(arguments.epochs):
        for folder in folders:
            os.replace(folder / f".{number:06d}", folder / f"{number:06d}.parquet")
    return counts


def _wait(holds: Callable[[], bool], kept: list[Kept], patience: float, trouble: str) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        if time.monotonic() > deadline:
            last = "\n".join(one.last_words() for one in kept)
            raise md.Retryable(f"it {trouble} within {patience:g} s; allow more with --patience. Its last words:\n{last}")
        time.sleep(0.05)


def _table(results: dict[str, Json], ratios: dict[str, float]) -> Table:
    rows = [
        (name, f"{SYSTEMS[name]}", f"{numbers['events_per_second']:,.0f}", f"{ratios[name]:.2f}" if name in ratios else "")
        for name, numbers in results.items()
    ]
    return Table(("system", "replicas", "events/s", "× alone"), tuple(rows))


def _notes(results: dict[str, Json]) -> list[str]:
    wrong = [name for name, numbers in results.items() if any(found["lost"] or found["doubled"] for found in numbers["by_round"])]
    return ["Nothing was lost or doubled." if not wrong else f"LOST OR DOUBLED: {', '.join(wrong)}."]
