"""Python state: one small state machine per key, in Python, Meander's processor beside Spark's transformWithState.

Four systems over the same events: a processor that is called per key, one that is called with whole batches, Spark's ``transformWithState``
row by row, and in pandas. Their outputs are compared row by row. Spark gets fewer events (--peer-events), in smaller batches
(--peer-epoch-events), since it takes so much longer; its rate hardly depends on either.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import polars as pl

import meander as md
from meander.bench.harness.isolation import run_isolated
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import add_common_arguments, at_least_one, options, say, work_folder
from meander.bench.harness.statistics import Json, epoch_times, intervals, median_parts, over_rounds
from meander.bench.python_state.ours import FORMS
from meander.bench.python_state.peer import PEERS, settings_of
from meander.bench.python_state.request import PARTS, PythonStateRequest, write_events

WARMUP = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=5_000_000, help="events that are measured, of Meander (default: %(default)s)")
    parser.add_argument("--epoch-events", type=int, default=1_000_000, help="events per epoch of Meander (default: %(default)s)")
    parser.add_argument("--peer-events", type=int, default=200_000, help="events that are measured, of Spark (default: %(default)s)")
    parser.add_argument("--peer-epoch-events", type=int, default=100_000, help="events per batch of Spark (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--against", default=",".join(PEERS), help="peers, separated by commas (default: %(default)s)")
    add_common_arguments(parser, rounds=1)


def run(arguments: argparse.Namespace) -> Report:
    at_least_one(arguments, "events", "epoch_events", "peer_events", "peer_epoch_events", "keys")
    peers = [name.strip() for name in arguments.against.split(",") if name.strip()]
    for name in peers:
        if name not in PEERS:
            raise md.ConfigError(f"--against {name}: there is no such peer; there are {', '.join(PEERS)}")
    for whole, part in (("events", "epoch_events"), ("peer_events", "peer_epoch_events"), ("epoch_events", "peer_epoch_events")):
        if getattr(arguments, whole) % getattr(arguments, part):
            raise md.ConfigError(f"--{whole.replace('_', '-')} must be a multiple of --{part.replace('_', '-')}")
    facts = machine_facts()
    measured = {"ours": arguments.events // arguments.epoch_events, "peers": arguments.peer_events // arguments.peer_epoch_events}
    per_epoch = arguments.epoch_events // arguments.peer_epoch_events * PARTS
    epochs, batches = WARMUP + measured["ours"] + 1, WARMUP + measured["peers"]
    files = max(per_epoch * epochs, PARTS * batches)
    results: dict[str, list[Json]] = {system: [] for system in (*FORMS, *peers)}
    with work_folder(arguments.folder) as folder:
        say(f"writing {files} files of {arguments.peer_epoch_events // PARTS:,} events over {arguments.keys:,} keys")
        write_events(folder / "input", files, arguments.peer_epoch_events // PARTS, arguments.keys, arguments.seed)
        few = _first_files(folder / "input", folder / "few", PARTS * batches)
        for number in range(arguments.rounds):
            outputs: dict[str, pl.DataFrame] = {}
            for system in results if number % 2 == 0 else reversed(results):
                ours = system in FORMS
                request = PythonStateRequest(
                    system,
                    str(folder / "input" if ours else few),
                    per_epoch if ours else PARTS,
                    epochs if ours else batches,
                    str(folder / f"{number}-{system}"),
                    arguments.master,
                    arguments.parallelism,
                    arguments.memory,
                )
                say(f"round {number + 1} of {arguments.rounds}, {system}: ", end="")
                answer = run_isolated(request, arguments.timeout)
                numbers = _measure(answer, ours, measured["ours"] if ours else measured["peers"])
                say(f"{numbers['events_per_second']:,} events/s")
                results[system].append(numbers)
                outputs[system] = _output(Path(request.folder) / "out")
                shutil.rmtree(request.folder, ignore_errors=True)
            _compare(outputs, few)
    systems = {system: {**over_rounds(rounds), "by_round": rounds} for system, rounds in results.items()}
    ratios = _ratios(systems, peers)
    config = {
        **options(arguments, "events", "epoch_events", "peer_events", "peer_epoch_events", "keys"),
        "peers": {peer: settings_of(arguments.parallelism, arguments.memory) for peer in peers},
        "machine": facts,
    }
    rows = tuple((name, f"{n['events_per_second']:,.0f}", f"{n['epoch_seconds']:.3f}") for name, n in systems.items())
    tables = [Table(("system", "events/s", "epoch s"), rows), Table(("ratio", "×"), tuple((n, f"{r:,.1f}") for n, r in ratios.items()))]
    notes = [
        "Equal output of all systems, row by row. Spark with RocksDB, which transformWithState needs, and changelog checkpoints. "
        "per-key and vectorised: Meander's two forms beside the faster of Spark's."
    ]
    return Report("python-state", config, arguments.rounds, systems, ratios, tables, notes)


def _first_files(source: Path, target: Path, count: int) -> Path:
    """A folder with the first files alone, which the peers read."""
    target.mkdir()
    for path in sorted(source.iterdir())[:count]:
        shutil.copy2(path, target / path.name)
    return target


def _measure(answer: Json, ours: bool, measured: int) -> Json:
    epochs = answer["epochs"]
    if ours:
        seconds = intervals([epoch["end"] for epoch in epochs], WARMUP, measured)
    else:
        seconds = [epoch["seconds"] for epoch in epochs[WARMUP : WARMUP + measured]]
    counted = epochs[WARMUP : WARMUP + measured]
    numbers = {"events_per_second": round(sum(epoch["rows_in"] for epoch in counted) / sum(seconds)), **epoch_times(seconds)}
    return {**numbers, "task_ms": median_parts([epoch["task_ms"] for epoch in counted])} if ours else numbers


def _ratios(systems: dict[str, Json], peers: list[str]) -> dict[str, float]:
    """Meander over Spark: by peer, and of both forms over the faster peer."""
    rates = {name: numbers["events_per_second"] for name, numbers in systems.items()}
    ratios = {peer: round(rates["meander"] / rates[peer], 2) for peer in peers}
    if peers:
        best = max(rates[peer] for peer in peers)
        ratios |= {"per-key": round(rates["meander"] / best, 2), "vectorised": round(rates["meander-vectorised"] / best, 2)}
    return ratios


def _output(folder: Path) -> pl.DataFrame:
    columns = ["key", "count", "phase", "total", "last"]
    return pl.concat([pl.read_parquet(path).select(columns) for path in sorted(folder.glob("*.parquet"))]).sort("key", "count")


def _compare(outputs: dict[str, pl.DataFrame], few: Path) -> None:
    """All rows that come of the events which every system has seen."""
    seen = pl.concat([pl.read_parquet(path) for path in few.iterdir()]).group_by("key").agg(pl.len().cast(pl.Int64).alias("seen"))
    first: pl.DataFrame | None = None
    for system, rows in outputs.items():
        mine = rows.join(seen, on="key").filter(pl.col("count") <= pl.col("seen")).drop("seen").sort("key", "count")
        if first is None:
            first = mine
        elif not mine.equals(first):
            raise md.Corrupted(f"{system} gave other rows ({mine.height}) than {next(iter(outputs))} ({first.height}) for the same events")
    if first is not None:
        say(f"equal output of {len(outputs)} systems: {first.height:,} rows of the events that all have seen")
