"""Expiry: does a flow with windows stay as small and as fast as it was? Meander with itself, over many windows.

Each kind of window has a process of its own. An epoch is half a window, every window has the same number of keys and as many events for
each, so that whatever grows is what should have gone. The ratios are the state after the last window over that after the third, in bytes,
and the median epoch of the last third of the run over that of the first: 1.0 is flat, and above 1 is worse.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import meander as md
from meander.bench.expiry.ours import EPOCHS_PER_WINDOW, KINDS, WINDOW_SECONDS, ExpiryRequest
from meander.bench.harness.isolation import run_isolated
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import OURS, add_common_arguments, at_least_one, options, say, work_folder
from meander.bench.harness.statistics import Json, epoch_times, intervals, median, over_rounds

_START = 1_704_067_200
_POPULATIONS = 5
"""Keys of a window come back so many windows later: in between, a session ends."""
_WARMUP = EPOCHS_PER_WINDOW


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--windows", type=int, default=100, help="windows that the input goes through (default: %(default)s)")
    parser.add_argument("--events", type=int, default=100_000, help="events per window (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=10_000, help="keys per window (default: %(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of windows, separated by commas (default: %(default)s)")
    add_common_arguments(parser, rounds=1)


def run(arguments: argparse.Namespace) -> Report:
    at_least_one(arguments, "events", "keys")
    kinds = [kind.strip() for kind in arguments.kinds.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise md.ConfigError(f"--kinds {kind}: there is no such kind; there are {', '.join(KINDS)}")
    if arguments.windows < 9:
        raise md.ConfigError(f"--windows {arguments.windows}: it takes at least 9 to compare the first third with the last")
    if arguments.events % (arguments.keys * EPOCHS_PER_WINDOW):
        raise md.ConfigError(f"--events {arguments.events}: must be a multiple of {EPOCHS_PER_WINDOW} times --keys")
    facts = machine_facts()
    rounds: dict[str, list[Json]] = {kind: [] for kind in kinds}
    with work_folder(arguments.folder) as folder:
        write_windows(folder / "input", arguments.windows, arguments.events, arguments.keys, arguments.seed)
        for number in range(arguments.rounds):
            for kind in kinds:
                request = ExpiryRequest(
                    OURS,
                    kind,
                    str(folder / "input"),
                    str(folder / f"{number}-{kind}"),
                    arguments.master,
                    arguments.parallelism,
                    arguments.memory,
                )
                say(f"round {number + 1} of {arguments.rounds}, {kind} windows: ", end="")
                numbers = _measure(run_isolated(request, arguments.timeout), arguments.windows)
                rounds[kind].append(numbers)
                say(f"epochs of {numbers['epoch_seconds'] * 1000:.0f} ms, {numbers['bytes_third']:,} → {numbers['bytes_end']:,} bytes")
    by_kind: Json = {kind: {**over_rounds(found), "by_round": found} for kind, found in rounds.items()}
    ratios = {}
    for kind, numbers in by_kind.items():
        ratios[f"{kind} state"] = round(numbers["bytes_end"] / numbers["bytes_third"], 3)
        ratios[f"{kind} epoch"] = round(numbers["epoch_seconds_last_third"] / numbers["epoch_seconds_first_third"], 3)
    config = {**options(arguments, "windows", "events", "keys"), "kinds": kinds, "machine": facts}
    return Report("expiry", config, arguments.rounds, {OURS: by_kind}, ratios, [_table(by_kind)], _notes(arguments))


def write_windows(folder: Path, windows: int, events: int, keys: int, seed: int) -> None:
    """A file per epoch. Event times go on evenly; every key has as many events in an epoch as any other of its window."""
    folder.mkdir(parents=True)
    per_file = events // EPOCHS_PER_WINDOW
    step = WINDOW_SECONDS * 1_000_000 / events
    for number in range(windows * EPOCHS_PER_WINDOW):
        draw = np.random.default_rng([seed, number])
        window = number // EPOCHS_PER_WINDOW
        key = draw.permuted(np.arange(keys)) + keys * (window % _POPULATIONS)
        ts = _START * 1_000_000 + ((np.arange(per_file) + number * per_file) * step).astype(np.int64)
        table = pa.table(
            {
                "key": np.tile(key, per_file // keys).astype(np.int64),
                "value": draw.random(per_file),
                "ts": pa.array(ts, pa.timestamp("us")),
            }
        )
        path = folder / f"{number:06d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (_START + number, _START + number))


def _measure(answer: Json, windows: int) -> Json:
    epochs = answer["epochs"]
    third, end = epochs[3 * EPOCHS_PER_WINDOW - 1], epochs[windows * EPOCHS_PER_WINDOW - 1]
    seconds = intervals([epoch["end"] for epoch in epochs], _WARMUP, windows * EPOCHS_PER_WINDOW - _WARMUP)
    part = len(seconds) // 3
    return {
        **epoch_times(seconds),
        "epoch_seconds_first_third": round(median(seconds[:part]), 4),
        "epoch_seconds_last_third": round(median(seconds[-part:]), 4),
        **{f"{name}_{when}": epoch[name] for when, epoch in (("third", third), ("end", end)) for name in ("rows", "bytes", "segments")},
        "bytes_max": max(epoch["bytes"] for epoch in epochs),
        "windows_out": answer["rows_out"],
        "epochs_ms": [round(second * 1000, 1) for second in seconds],
        "epochs_bytes": [epoch["bytes"] for epoch in epochs],
    }


def _table(by_kind: Json) -> Table:
    rows = [
        (
            kind,
            *(f"{numbers[f'{name}_{when}']:,.0f}" for name in ("rows", "bytes") for when in ("third", "end")),
            f"{numbers['bytes_max']:,.0f}",
            *(f"{numbers[f'epoch_seconds_{when}'] * 1000:.0f}" for when in ("first_third", "last_third", "max")),
        )
        for kind, numbers in by_kind.items()
    ]
    titles = (
        "rows after 3",
        "rows at end",
        "bytes after 3",
        "bytes at end",
        "bytes at most",
        "ms, first third",
        "ms, last third",
        "ms at most",
    )
    return Table(("windows", *titles), tuple(rows))


def _notes(arguments: argparse.Namespace) -> list[str]:
    return [
        f"{arguments.windows} windows of {arguments.events:,} events and {arguments.keys:,} keys, {EPOCHS_PER_WINDOW} epochs each. "
        "Every window closed once, with every event: compared with the input."
    ]
