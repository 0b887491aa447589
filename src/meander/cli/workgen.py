"""``meander workgen``: the simulated workload as files, of any size."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from meander.cli.parser import Commands
from meander.errors import ConfigError
from meander.settings import seconds

if TYPE_CHECKING:
    from meander.bench.load.workgen import Written

_RATE, _DURATION, _EVERY = 1_000.0, "60s", 1.0
_EXAMPLES = """examples:
  meander workgen workload/in                                    a minute of 1,000 events/s, at once
  meander workgen workload/in --live --interval 9ms --cpu 12ms   as they are due: one every 9 ms, each worth 12 ms of computing
  meander workgen workload/in --keys 1000000 --junk 1000 --load  a gigabyte of state: first one event per key, then the stream
  meander workgen workload/in --format json --payload 200 --skew 1.1

examples/workload.py is the flow that takes them: meander run examples/workload.py --store workload/state"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "workgen",
        help="write a simulated workload into a folder",
        description="Write events of any number of keys, skew, size and cost into a folder. The same options give the same events; "
        "only the creation times of a live stream begin when it does.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the files appear, each whole and by renaming; made where it is missing")
    parser.add_argument("--keys", type=int, default=1_000, metavar="N", help="distinct keys (default: %(default)s)")
    parser.add_argument(
        "--skew", type=float, default=0.0, metavar="S", help="exponent of Zipf's law for the keys; 0 for all alike (default: %(default)s)"
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=float, metavar="R", help=f"events per second (default: {_RATE:g})")
    pace.add_argument("--interval", metavar="TIME", help="time between two events, such as 9ms, instead of a rate")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--events", type=int, metavar="N", help="how many events in all")
    amount.add_argument("--duration", metavar="TIME", help=f"how long the stream is, instead of a number of events (default: {_DURATION})")
    parser.add_argument("--payload", type=int, default=0, metavar="BYTES", help="bytes of text in every event (default: %(default)s)")
    parser.add_argument(
        "--junk",
        type=int,
        default=0,
        metavar="BYTES",
        help="bytes that every key holds in the state, beside its count (default: %(default)s)",
    )
    parser.add_argument("--cpu", default="0ms", metavar="TIME", help="computing per event, such as 12ms or 0.1ms (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=1, metavar="N", help="files that are written side by side (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other events (default: %(default)s)")
    parser.add_argument("--load", action="store_true", help="first one event per key, so that the state has its full size from the start")
    parser.add_argument("--live", action="store_true", help="publish events when they are due, not as fast as it goes")
    parser.add_argument(
        "--every", default=f"{_EVERY:g}s", metavar="TIME", help="the time that the events of one file span (default: %(default)s)"
    )
    parser.add_argument("--format", choices=("parquet", "json"), default="parquet", help="of the files; json is one object per line")
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON object on the last line")
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    from meander.bench.load.workgen import Writer
    from meander.bench.load.workload import Workload

    rate = chosen_rate(arguments)
    events = chosen_events(arguments, rate)
    workload = Workload(
        keys=arguments.keys,
        skew=arguments.skew,
        rate=rate,
        payload=arguments.payload,
        junk=arguments.junk,
        cpu_us=round(_duration("--cpu", arguments.cpu) * 1e6),
        partitions=arguments.partitions,
        seed=arguments.seed,
    )
    per_file = max(1, math.ceil(rate * _duration("--every", arguments.every, above=0.0) / arguments.partitions))
    writer = Writer(arguments.folder, workload, arguments.format)
    began = time.monotonic()
    show = _Progress((arguments.keys if arguments.load else 0) + events)
    if arguments.load:
        writer.load(show)
    try:
        writer.write(events, per_file, arguments.live, show)
    except KeyboardInterrupt:  # what is published is whole
        show.end()
        if not arguments.live:
            raise
    show.end()
    written, took = writer.written, time.monotonic() - began
    print(f"{written.events:,} events in {written.files:,} files, {written.bytes / 1e6:,.1f} MB, in {took:.1f} s: {arguments.folder}")
    if arguments.json:
        print(json.dumps({"folder": arguments.folder, **asdict(written), "seconds": round(took, 3), "workload": asdict(workload)}))
    return 0


def chosen_rate(arguments: argparse.Namespace) -> float:
    if arguments.interval is not None:
        return 1.0 / _duration("--interval", arguments.interval, above=0.0)
    rate = _RATE if arguments.rate is None else float(arguments.rate)
    if not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {rate:g}: must be a number of events per second above 0")
    return rate


def chosen_events(arguments: argparse.Namespace, rate: float) -> int:
    if arguments.events is not None:
        if arguments.events < 0:
            raise ConfigError(f"--events {arguments.events}: must be at least 0")
        return int(arguments.events)
    return round(rate * _duration("--duration", arguments.duration or _DURATION))


def _duration(option: str, text: str, above: float = -1.0) -> float:
    """An option that is a time; a number alone is seconds."""
    try:
        value = seconds(float(text)) if text.replace(".", "", 1).isdigit() else seconds(text)
    except ConfigError as error:
        raise ConfigError(f"{option} {text}: {error}") from error
    if value is None or value <= above:
        raise ConfigError(f"{option} {text}: must be above {above:g}")
    return value


class _Progress:
    """A line that is written over in a terminal, and now and then a line elsewhere."""

    def __init__(self, total: int) -> None:
        self._total, self._live, self._spoken = total, sys.stderr.isatty(), time.monotonic()

    def __call__(self, written: Written) -> None:
        if time.monotonic() - self._spoken < (0.2 if self._live else 5.0):
            return
        self._spoken = time.monotonic()
        text = f"{written.events:,} of {self._total:,} events, {written.bytes / 1e6:,.1f} MB"
        sys.stderr.write(f"\r{text} " if self._live else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._live:
            sys.stderr.write("\r\033[K")
