"""Nexmark's queries on Meander and on Spark's own Structured Streaming: the same files, the same machine, one invocation.

For every query and system, in a process of its own: ``--events`` events in epochs of ``--events-per-epoch``, from the end of the warm-up
epochs (which come on top) to the end of the last. State is durable on disk after every epoch, output goes nowhere (q10's into files), and
every row of the input must have been read, none dropped as late.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from pathlib import Path

import meander as md
from meander import nexmark
from meander.bench.harness.isolation import run_isolated
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.peers import PEERS, peer_settings
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import OURS, add_common_arguments, at_least_one, options, say, tried_settings, work_folder
from meander.bench.harness.statistics import Json, intervals, median, median_parts, over_rounds
from meander.bench.nexmark.peer import QUERIES
from meander.bench.nexmark.request import NexmarkRequest
from meander.nexmark.queries import FLOWS

FILES_PER_EPOCH = 2
STATEFUL = ("q3", "q4", "q5", "q6", "q7", "q8", "q9", "q11", "q12", "q15", "q16", "q17", "q18", "q19", "q20")
MEAN = "geometric mean of the stateful"
_AGAINST = {"spark": "spark-rocksdb", **{name: name for name in PEERS}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queries", nargs="*", metavar="QUERY", help="which of them (default: all that Spark can express)")
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N", help="events that are measured (default: %(default)s)")
    parser.add_argument(
        "--events-per-epoch", type=int, default=100_000, metavar="N", help="events per epoch and batch (default: %(default)s)"
    )
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="epochs before the measured ones (default: %(default)s)")
    parser.add_argument(
        "--against",
        default="spark",
        metavar="PEER",
        help="spark (its RocksDB state store), spark-memory, or empty for none (default: %(default)s)",
    )
    parser.add_argument(
        "--spark-setting", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark's to try on the peer, on top"
    )
    add_common_arguments(parser, rounds=1)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on the last line")


def command(arguments: argparse.Namespace) -> int:
    """``meander nexmark bench``."""
    report = run(arguments)
    print(report.text())
    if arguments.json:
        print(report.json_line())
    return 0


def run(arguments: argparse.Namespace) -> Report:
    queries, peer, measured = _queries(arguments), _peer(arguments), _measured(arguments)
    tried, facts = tried_settings(arguments), machine_facts()
    epochs = arguments.warmup + measured
    systems = [OURS, *([peer] if peer else [])]
    with work_folder(arguments.folder) as folder:
        say(f"writing {epochs} epochs of {arguments.events_per_epoch:,} events")
        places = nexmark.write_files(
            folder / "events", epochs * arguments.events_per_epoch, arguments.events_per_epoch // FILES_PER_EPOCH, arguments.seed
        )
        rows = {name: _rows(place) for name, place in places.items()}
        results: dict[str, dict[str, list[Json]]] = {query: {system: [] for system in systems} for query in queries}
        for number in range(arguments.rounds):
            for query in queries:
                for system in systems if number % 2 == 0 else reversed(systems):
                    if system != OURS and query not in QUERIES:
                        continue
                    request = NexmarkRequest(
                        system=system,
                        query=query,
                        tables={name: str(place) for name, place in places.items()},
                        rows=rows,
                        epochs=epochs,
                        files_per_epoch=FILES_PER_EPOCH,
                        folder=str(folder / f"{number}-{query}-{system}"),
                        master=arguments.master,
                        parallelism=arguments.parallelism,
                        memory=arguments.memory,
                        settings=tried if system != OURS else {},
                    )
                    results[query][system].append(_measure(request, arguments, measured))
    return _report(arguments, queries, peer, results, {"measured_epochs": measured, "machine": facts})


def _measure(request: NexmarkRequest, arguments: argparse.Namespace, measured: int) -> Json:
    title = f"{request.query}, {request.system}: "
    say(title, end="")
    live = sys.stderr.isatty()

    def progress(epoch: int | str) -> None:
        if live:
            say(f"\r{title}epoch {epoch} of {request.epochs} ", end="")

    answer = run_isolated(request, arguments.timeout, progress)
    shutil.rmtree(request.folder, ignore_errors=True)
    seconds = intervals([epoch["end"] for epoch in answer["epochs"]], arguments.warmup, measured)
    counted = answer["epochs"][arguments.warmup :]
    numbers: Json = {
        "events_per_second": round(measured * arguments.events_per_epoch / sum(seconds)),
        "epoch_seconds": round(median(seconds), 4),
        "epoch_seconds_max": round(max(seconds), 4),
        "wall_ms": median_parts([epoch["wall_ms"] for epoch in counted]),
        "task_ms": median_parts([epoch["task_ms"] for epoch in counted]),
    }
    say(f"{numbers['events_per_second']:,} events/s, epochs of {numbers['epoch_seconds']:.3f} s")
    return numbers


def _report(
    arguments: argparse.Namespace, queries: list[str], peer: str | None, results: dict[str, dict[str, list[Json]]], more: Json
) -> Report:
    merged = {query: {s: over_rounds(rounds) for s, rounds in by.items() if rounds} for query, by in results.items()}
    ratios: dict[str, float] = {}
    for query, by in merged.items():
        if peer in by:
            ratios[query] = round(by[OURS]["events_per_second"] / by[peer]["events_per_second"], 2)
    stateful = [ratios[query] for query in ratios if query in STATEFUL]
    if stateful:
        ratios[MEAN] = round(math.exp(sum(map(math.log, stateful)) / len(stateful)), 2)
    systems: dict[str, Json] = {}
    for query, by in merged.items():
        for system, numbers in by.items():
            systems.setdefault(system, {})[query] = numbers
    config = {
        **options(arguments, "events", "events_per_epoch", "warmup"),
        "queries": queries,
        "stateful": [query for query in queries if query in STATEFUL],
        "peers": {}
        if peer is None
        else {peer: {**peer_settings(peer, arguments.parallelism, arguments.memory), **tried_settings(arguments)}},
        **more,
    }
    return Report("nexmark", config, arguments.rounds, systems, ratios, [_table(merged, peer, ratios)], _notes(arguments, peer, merged))


def _table(merged: dict[str, dict[str, Json]], peer: str | None, ratios: dict[str, float]) -> Table:
    columns = ["query", "state", f"{OURS} events/s", "epoch s"]
    if peer is not None:
        columns += [f"{peer} events/s", "epoch s", "Meander is faster by"]
    rows = []
    for query, by in merged.items():
        row = [query, "yes" if query in STATEFUL else "", f"{by[OURS]['events_per_second']:,.0f}", f"{by[OURS]['epoch_seconds']:.3f}"]
        if peer is not None:
            other = by.get(peer)
            row += [f"{other['events_per_second']:,.0f}", f"{other['epoch_seconds']:.3f}"] if other else ["cannot", ""]
            row.append(f"{ratios[query]:.2f}×" if query in ratios else "")
        rows.append(tuple(row))
    if MEAN in ratios:
        rows.append((MEAN, "", "", "", "", "", f"{ratios[MEAN]:.2f}×"))
    return Table(tuple(columns), tuple(rows))


def _notes(arguments: argparse.Namespace, peer: str | None, merged: dict[str, dict[str, Json]]) -> list[str]:
    notes = [
        f"{arguments.rounds} round(s); per query {arguments.events:,} events in epochs of {arguments.events_per_epoch:,} "
        f"after {arguments.warmup} of warm-up. State on disk after every epoch; every row was read, and none dropped as late."
    ]
    cannot = [query for query, by in merged.items() if peer is not None and peer not in by]
    if cannot:
        notes.append(f"{', '.join(cannot)}: Spark's own streaming operators cannot express them.")
    return notes


def _queries(arguments: argparse.Namespace) -> list[str]:
    for query in arguments.queries:
        if query not in FLOWS:
            raise md.ConfigError(f"query '{query}': there is no such query; there are {', '.join(FLOWS)}")
    return list(dict.fromkeys(arguments.queries)) or [query for query in FLOWS if query in QUERIES]


def _peer(arguments: argparse.Namespace) -> str | None:
    if arguments.against in ("", "none"):
        return None
    if arguments.against not in _AGAINST:
        raise md.ConfigError(f"--against {arguments.against}: there is no such peer; there are {', '.join(_AGAINST)}")
    return _AGAINST[arguments.against]


def _measured(arguments: argparse.Namespace) -> int:
    at_least_one(arguments, "events", "events_per_epoch", "warmup")
    measured, rest = divmod(arguments.events, arguments.events_per_epoch)
    if rest or measured < 1 or arguments.events_per_epoch % (FILES_PER_EPOCH * 50):
        raise md.ConfigError(
            f"--events {arguments.events} must be a multiple of --events-per-epoch {arguments.events_per_epoch}, and that one of "
            f"{FILES_PER_EPOCH * 50}"
        )
    return int(measured)


def _rows(place: Path) -> int:
    import polars as pl

    return int(pl.scan_parquet(place / "*.parquet").select(pl.len()).collect().item())
