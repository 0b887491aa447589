"""Long spans: the cost of an epoch whose rows lie within a minute, a day, 30 days or a year.
Meander beside Spark's own operators.

Every epoch has as many rows, touched keys and rows out whatever it spans (see
``backfill_request``), so a ratio between spans compares equal work. Each operator, span and system
has a process of its own over the same files. All output rows are compared with DuckDB's result over
those files. A run that is not finished within --timeout is reported with the epochs that it had
finished. The ratios ``year/minute`` are the cost of the longer span for Meander, and above 1 is
worse; ratios with Spark's name alone say how much longer Spark's batch takes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import meander as md
from meander.bench.backfill.check import compare
from meander.bench.backfill.peer import settings_of
from meander.bench.backfill.request import (
    CLOSING_EPOCHS,
    OPERATORS,
    ROWS_PER_VISIT,
    SPANS,
    WITHOUT_PEER,
    BackfillRequest,
    Record,
    write_visits,
)
from meander.bench.harness.isolation import TookTooLong, run_isolated
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import OURS, add_common_arguments, at_least_one, options, say, tried_settings, work_folder
from meander.bench.harness.statistics import Json, epoch_times, intervals, median, over_rounds

PEER = "spark-rocksdb"
WARMUP = 1

Results = dict[str, Json]
"""System → operator → span → numbers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=20_000, help="rows per epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help=f"epochs that are measured, after {WARMUP} of warm-up (default: %(default)s)")
    parser.add_argument("--spans", default="minute,day,30d,year", help=f"of {', '.join(SPANS)} (default: %(default)s)")
    parser.add_argument("--operators", default=",".join(OPERATORS), help="separated by commas (default: %(default)s)")
    parser.add_argument("--against", default=PEER, help="the peer, or empty for none (default: %(default)s)")
    parser.add_argument(
        "--spark-setting", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark's to try on the peer, on top"
    )
    add_common_arguments(parser, rounds=1)
    parser.set_defaults(timeout=300.0)


def run(arguments: argparse.Namespace) -> Report:
    at_least_one(arguments, "rows", "epochs")
    spans, operators = _chosen(arguments, "spans", SPANS), _chosen(arguments, "operators", OPERATORS)
    peers = _chosen(arguments, "against", (PEER,), empty=True)
    if arguments.rows % ROWS_PER_VISIT:
        raise md.ConfigError(f"--rows {arguments.rows}: must be a multiple of {ROWS_PER_VISIT}")
    facts, tried = machine_facts(), tried_settings(arguments)
    rounds: dict[tuple[str, str, str], list[Json]] = {}
    settings: Json = {}
    with work_folder(arguments.folder) as folder:
        for span in spans:
            say(f"writing {WARMUP + arguments.epochs} epochs of {arguments.rows:,} rows that span {span} each")
            write_visits(folder / span, SPANS[span], WARMUP + arguments.epochs, arguments.rows, arguments.seed)
        for number in range(arguments.rounds):
            for operator in operators:
                for span in spans:
                    systems = [OURS, *(peers if operator not in WITHOUT_PEER else [])]
                    for system in systems if number % 2 == 0 else reversed(systems):
                        request = BackfillRequest(
                            system=system,
                            operator=operator,
                            input=str(folder / span),
                            epochs=WARMUP + arguments.epochs,
                            folder=str(folder / f"{number}-{operator}-{span}-{system}"),
                            master=arguments.master,
                            parallelism=arguments.parallelism,
                            memory=arguments.memory,
                            settings=tried if system != OURS else {},
                        )
                        if system != OURS:
                            settings[system] = {**settings_of(request), **tried}
                        say(f"round {number + 1} of {arguments.rounds}, {operator}, {span}, {system}: ", end="")
                        numbers = _run_one(request, arguments.timeout)
                        say(_words(numbers))
                        rounds.setdefault((system, operator, span), []).append(numbers)
    results: Results = {}
    for (system, operator, span), found in rounds.items():
        results.setdefault(system, {}).setdefault(operator, {})[span] = _over(found)
    config = {
        **options(arguments, "rows", "epochs"),
        "timeout": arguments.timeout,
        "spans": spans,
        "operators": operators,
        "peers": settings,
        "machine": facts,
    }
    tables = [_table(operator, spans, results, arguments.timeout) for operator in operators]
    return Report("backfill", config, arguments.rounds, results, ratios(results, spans), tables, _notes(arguments, operators, peers))


def _chosen(arguments: argparse.Namespace, option: str, there: Iterable[str], empty: bool = False) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in getattr(arguments, option).split(",") if name.strip()))
    known = list(there)
    for name in names:
        if name not in known:
            raise md.ConfigError(f"--{option} {name}: there is no such thing; there are {', '.join(known)}")
    if not names and not empty:
        raise md.ConfigError(f"--{option}: give some of {', '.join(known)}")
    return names


def _run_one(request: BackfillRequest, timeout: float) -> Json:
    """One run, compared if it came to its end. Its state is removed: the next one gets a disk as empty as this one."""
    finished = True
    try:
        run_isolated(request, timeout)
    except TookTooLong:
        finished = False
    over = time.time()
    began, epochs = Record(request.folder).read()
    files, size = _on_disk(Path(request.folder) / ("store/segments" if request.system == OURS else "checkpoint/state"))
    if finished:
        if len(epochs) < request.epochs:
            raise md.Corrupted(f"{request.system}, {request.operator}: {len(epochs)} epochs; the input is for {request.epochs}")
        numbers = {"finished": True, **measure(epochs, request.epochs), **compare(request)}
    else:
        numbers = {"finished": False, **reached(began, epochs[: request.epochs], over)}
        numbers |= {"files_at_end": files, "bytes_at_end": size}
    if request.system != OURS and finished:
        batches = request.epochs + CLOSING_EPOCHS
        numbers |= {"files": round(files / batches, 1), "bytes": round(size / batches)}
    shutil.rmtree(request.folder, ignore_errors=True)
    return numbers


def measure(epochs: list[Json], count: int) -> Json:
    """The numbers of a run over ``count`` epochs of visits: of those after the warm-up."""
    seconds = intervals([epoch["end"] for epoch in epochs], WARMUP, count - WARMUP)
    numbers: Json = {**epoch_times(seconds), "epochs_ms": [round(second * 1000, 1) for second in seconds]}
    for name in ("files", "bytes", "files_held", "bytes_held"):
        if name in epochs[0]:
            numbers[name] = median([epoch[name] for epoch in epochs[WARMUP:count]])
    return numbers


def reached(began: float | None, epochs: list[Json], over: float) -> Json:
    """How far a run came that was ended. ``epoch_seconds_at_least`` is the median of its measured epochs, or what the one that was
    under way had taken.

    >>> reached(100.0, [], 160.0)
    {'epochs_reached': 0, 'epoch_seconds_at_least': 60.0}
    >>> reached(None, [], 160.0)
    {'epochs_reached': 0, 'epoch_seconds_at_least': None}
    """
    ends = [epoch["end"] for epoch in epochs]
    if len(ends) > WARMUP:
        least: float | None = round(median(intervals(ends, WARMUP, len(ends) - WARMUP)), 4)
    else:
        last = ends[-1] if ends else began
        least = None if last is None else round(over - last, 4)
    return {"epochs_reached": len(ends), "epoch_seconds_at_least": least}


def ratios(results: Results, spans: list[str]) -> dict[str, float]:
    """Between spans for each system, and between systems for each span. A run that was ended gives a bound, and the name says so."""
    found: dict[str, float] = {}
    for system, by_operator in results.items():
        for operator, by_span in by_operator.items():
            prefix = "" if system == OURS else f"{system} "
            for span in spans[1:]:
                _put(found, f"{prefix}{operator} {span}/{spans[0]}", by_span[span], by_span[spans[0]])
            for span in spans if system != OURS else []:
                _put(found, f"{operator} {span} {system}", by_span[span], results[OURS][operator][span])
    return found


def _put(found: dict[str, float], name: str, above: Json, below: Json) -> None:
    high, low = _seconds(above), _seconds(below)
    if high is None or low is None or not (above["finished"] or below["finished"]):
        return
    bound = "" if above["finished"] and below["finished"] else " (at least)" if below["finished"] else " (at most)"
    found[name + bound] = round(high / low, 2)


def _seconds(numbers: Json) -> float | None:
    seconds: float | None = numbers["epoch_seconds"] if numbers["finished"] else numbers["epoch_seconds_at_least"]
    return seconds


def _over(rounds: list[Json]) -> Json:
    ended = [numbers for numbers in rounds if not numbers["finished"]]
    return {**(ended[0] if ended else over_rounds(rounds)), "by_round": rounds}


def _on_disk(folder: Path) -> tuple[int, int]:
    sizes = [os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names]
    return len(sizes), sum(sizes)


def _words(numbers: Json) -> str:
    if numbers["finished"]:
        return (
            f"epochs of {numbers['epoch_seconds'] * 1000:,.0f} ms, {numbers['files']:,.0f} files each; {numbers['rows_out']:,} rows, equal"
        )
    least = numbers["epoch_seconds_at_least"]
    took = "" if least is None else f", an epoch takes at least {least:,.1f} s"
    return f"ended by --timeout after {numbers['epochs_reached']} epochs{took}; {numbers['files_at_end']:,} files in the store"


def _table(operator: str, spans: list[str], results: Results, timeout: float) -> Table:
    peers = [system for system in results if system != OURS and operator in results[system]]
    columns = [operator, "rows out"]
    for system in (OURS, *peers):
        columns += [f"{system}: ms", f"to {spans[0]}", "files", "kB"]
    rows, found = [], ratios(results, spans)
    for span in spans:
        row = [span, next((f"{numbers['rows_out']:,.0f}" for numbers in _of(results, operator, span) if numbers["finished"]), "")]
        for system in (OURS, *peers):
            by_span = results[system][operator]
            row += _cells(by_span[span], by_span[spans[0]])
        if peers:
            row.append(_faster(found, f"{operator} {span} {peers[0]}"))
        rows.append(tuple(row))
    return Table((*columns, *(["faster by"] if peers else [])), tuple(rows))


def _faster(found: dict[str, float], name: str) -> str:
    for bound, sign in (("", ""), (" (at least)", "≥"), (" (at most)", "≤")):
        if name + bound in found:
            return f"{sign}{found[name + bound]:,.2f}×"
    return ""


def _of(results: Results, operator: str, span: str) -> list[Json]:
    return [by[operator][span] for by in results.values() if operator in by]


def _cells(numbers: Json, base: Json) -> list[str]:
    if numbers["finished"]:
        ratio = f"{numbers['epoch_seconds'] / base['epoch_seconds']:,.2f}×" if base["finished"] else ""
        return [f"{numbers['epoch_seconds'] * 1000:,.0f}", ratio, f"{numbers['files']:,.0f}", f"{numbers['bytes'] / 1000:,.0f}"]
    least = numbers["epoch_seconds_at_least"]
    ratio = f"≥{least / base['epoch_seconds']:,.1f}×" if base["finished"] and least is not None else ""
    return [
        "not up" if least is None else f"≥{least * 1000:,.0f}",
        ratio,
        f"({numbers['files_at_end']:,})",
        f"({numbers['bytes_at_end'] / 1000:,.0f})",
    ]


def _notes(arguments: argparse.Namespace, operators: list[str], peers: list[str]) -> list[str]:
    notes = [
        f"Medians of {arguments.epochs} epochs of {arguments.rows:,} rows, which touch {arguments.rows // ROWS_PER_VISIT:,} keys whatever "
        f"they span. Rows out are those of the whole run; all of them equal DuckDB's. Files and kB are what an epoch writes of state.",
        f"≥: ended after {arguments.timeout:g} s (--timeout); its rows are not compared, and in brackets is what was in the store then.",
    ]
    if peers:
        notes.append(
            "Spark: RocksDB with changelog checkpoints and without counting rows; window, session_window, a stream-stream join, "
            "dropDuplicatesWithinWatermark, and for timers transformWithState row by row. Its files are all of its state's, per batch."
        )
    if peers and any(operator in WITHOUT_PEER for operator in operators):
        notes.append("as-of: Spark has no as-of join of two streams, so there is no peer.")
    return notes
