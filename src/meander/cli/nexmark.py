"""``meander nexmark``: the suite's queries run, checked and measured, and its events as files."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander.cli import nexmark_verify, wording
from meander.cli.parser import Commands, Parser
from meander.errors import ConfigError

if TYPE_CHECKING:
    from meander.cli.progress import Meter
    from meander.run import Run

_EVENTS, _PER_EPOCH = 1_000_000, 100_000
_EXAMPLES = """examples:
  meander nexmark list                                     the 23 queries, in a line each
  meander nexmark run q5 --events 1000000 --check          run one, and compare its result row by row with DuckDB's
  meander nexmark verify q5 q9                             the same after kill -9 in the middle, and with other slots
  meander nexmark generate events/ --events 1000000        people, auctions and bids as Parquet files
  meander nexmark bench q5 q9 --against spark --json       beside Spark's own engine, on the same events"""
_RUN_EXAMPLES = """examples:
  meander nexmark run q5 --check                           a million events; is the result right?
  meander nexmark run q9 --events 200000 --parallelism 4 --seed 7 --check --json
  meander nexmark run q18 --store state/ --out out/        keep the state and the result
  meander state state/ last --limit 5                      … and look at it

With --store a run that was killed goes on where it was: give the same command again."""


def register(commands: Commands, with_options: bool = True) -> None:
    parser = commands.add_parser(
        "nexmark",
        help="an online auction as a stream: run, check and measure 23 queries",
        description="Nexmark: people, auctions and bids, and the suite's 23 queries as flows. docs/nexmark.md has them in words.",
        epilog=_EXAMPLES,
    )
    parser.set_defaults(command=lambda _: _help(parser))
    own = parser.add_subparsers(title="commands", metavar="COMMAND", dest="nexmark", parser_class=Parser)
    listed = own.add_parser("list", help="the queries, in a line each", description="The queries, in a line each.")
    listed.add_argument("--json", action="store_true", help="as one JSON object")
    listed.set_defaults(command=list_queries)
    _register_generate(own)
    _register_run(own)
    nexmark_verify.register(own)
    _register_bench(own, with_options)
    for added in own.choices.values():
        added.formatter_class = argparse.RawDescriptionHelpFormatter
        added.allow_abbrev = False


def _register_generate(own: Commands) -> None:
    parser = own.add_parser(
        "generate",
        help="the events as Parquet files",
        description="Write the stream as Parquet files, in the folders person, auction and bid. The same options give the same files.",
        epilog="examples:\n  meander nexmark generate events/ --events 10000000 --events-per-file 500000",
    )
    parser.add_argument("folder", metavar="DIR", help="an empty or new folder")
    _add_events(parser)
    parser.add_argument(
        "--events-per-file", type=int, default=_EVENTS, metavar="N", help="events of the whole stream per file (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON object")
    parser.set_defaults(command=generate)


def _register_run(own: Commands) -> None:
    parser = own.add_parser(
        "run",
        help="run a query, and check its result",
        description="Run a query over generated events to their end. With --check the result is compared row by row with DuckDB's.",
        epilog=_RUN_EXAMPLES,
    )
    parser.add_argument("query", metavar="QUERY", help="q0 to q22; `meander nexmark list` shows them")
    _add_events(parser)
    parser.add_argument("--check", action="store_true", help="compare with DuckDB over the same events; exit code 1 where they differ")
    parser.add_argument("--parallelism", type=int, default=2, metavar="N", help="slots of every stateful operator (default: %(default)s)")
    parser.add_argument(
        "--events-per-epoch", type=int, default=_PER_EPOCH, metavar="N", help="events that an epoch takes at most (default: %(default)s)"
    )
    parser.add_argument("--store", metavar="DIR", help="where state and log are kept (default: a temporary folder, removed at the end)")
    parser.add_argument("--out", metavar="DIR", help="where the results go, as Parquet files (default: out/ inside the store's folder)")
    parser.add_argument("--master", metavar="M", help="Spark's master (default: a local Spark on all cores)")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON on standard output; progress goes to standard error")
    parser.add_argument("--no-color", action="store_true", help="plain text")
    parser.set_defaults(command=run)


def _register_bench(own: Commands, with_options: bool) -> None:
    parser = own.add_parser(
        "bench",
        help="measure queries beside Spark's own engine",
        description="Run queries on Meander and on Spark's own Structured Streaming, over the same files, each in a process of its own.",
        epilog="examples:\n  meander nexmark bench --events 1000000 --against spark --json\n  meander nexmark bench q5 q9 q20 --rounds 3",
    )
    if not with_options:
        return
    from meander.bench.nexmark import add_arguments, command

    add_arguments(parser)
    parser.set_defaults(command=command)


def _add_events(parser: Parser) -> None:
    parser.add_argument("--events", type=int, default=_EVENTS, metavar="N", help="events of the whole stream (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other events (default: %(default)s)")
    parser.add_argument(
        "--event-rate", type=int, metavar="N", help="events per second of event time; fewer make more windows (default: 10000)"
    )


def _help(parser: Parser) -> int:
    parser.print_help()
    return 0


def described(query: str) -> str:
    """A query in a line: the first of its module."""
    text = importlib.import_module(f"meander.nexmark.queries.{query}").__doc__ or ""
    return text.strip().splitlines()[0].removeprefix(f"{query}, ")


def list_queries(arguments: argparse.Namespace) -> int:
    from meander.nexmark.queries import FLOWS

    if arguments.json:
        print(json.dumps({query: {"reads": list(reads), "does": described(query)} for query, reads in FLOWS.items()}))
        return 0
    for query, reads in FLOWS.items():
        print(f"{query:<4} {described(query)}\n     reads {', '.join(reads)}")
    return 0


def generate(arguments: argparse.Namespace) -> int:
    from meander import nexmark

    began = time.monotonic()
    folders = nexmark.write_files(arguments.folder, arguments.events, arguments.events_per_file, arguments.seed, _workload(arguments))
    took = time.monotonic() - began
    files = [file for folder in folders.values() for file in folder.glob("*.parquet")]
    bytes_ = sum(file.stat().st_size for file in files)
    if arguments.json:
        said = {"folders": {name: str(place) for name, place in folders.items()}, "events": arguments.events, "files": len(files)}
        print(json.dumps({**said, "bytes": bytes_, "seconds": round(took, 3), "seed": arguments.seed}))
    else:
        print(f"{wording.count(arguments.events)} events in {len(files)} files, {wording.size(bytes_)}, in {wording.duration(took)}:")
        for place in folders.values():
            print(f"  {place}")
    return 0


@dataclass(frozen=True)
class _Places:
    """Where a run keeps what it writes."""

    store: Path
    out: Path
    temporary: Path | None


def run(arguments: argparse.Namespace) -> int:
    from meander import nexmark
    from meander.cli.progress import make_console
    from meander.nexmark.queries import FLOWS

    if arguments.query not in FLOWS:
        raise ConfigError(f"query '{arguments.query}': there is no such query; there are {', '.join(FLOWS)}")
    for name in ("events", "parallelism", "events_per_epoch"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least 1")
    tables = nexmark.sources(
        FLOWS[arguments.query],
        events=arguments.events,
        partitions=arguments.parallelism,
        seed=arguments.seed,
        max_rows_per_epoch=arguments.events_per_epoch,
        workload=_workload(arguments),
    )
    console = make_console(arguments.json, arguments.no_color)
    places = _places(arguments)
    try:
        summary = _run(arguments, tables, places, console)
        if arguments.check and summary["outcome"] == "finished":
            summary["check"] = _check(arguments, tables, places, console)
    finally:
        if places.temporary is not None:
            shutil.rmtree(places.temporary, ignore_errors=True)
    if arguments.json:
        print(json.dumps(summary), flush=True)
    return 0 if summary.get("check", {}).get("equal", True) else 1


def _places(arguments: argparse.Namespace) -> _Places:
    temporary = Path(tempfile.mkdtemp(prefix="meander-nexmark-")) if arguments.store is None else None
    store = Path(arguments.store) if temporary is None else temporary / "state"
    if "://" in str(arguments.store):
        raise ConfigError(f"--store {arguments.store}: give a folder; a flow of your own can have its state elsewhere, too")
    return _Places(store, Path(arguments.out) if arguments.out else store.with_name(f"{store.name}-out"), temporary)


def _workload(arguments: argparse.Namespace) -> Any:
    from meander.nexmark.workload import Workload

    return Workload() if arguments.event_rate is None else Workload(event_rate=arguments.event_rate)


def _run(arguments: argparse.Namespace, tables: dict[str, Any], places: _Places, console: Any) -> dict[str, Any]:
    """Run the flow to the end of its input, or to a signal; the result in numbers."""
    import meander as md
    from meander.cli.interruption import Stop
    from meander.cli.progress import Lines, Meter, StatusLine, waiting, watch
    from meander.cli.store_view import refuse_busy
    from meander.nexmark.checking import output
    from meander.nexmark.queries import build
    from meander.nexmark.verify import KEEP_ALL

    flow = build(arguments.query, tables, output(arguments.query, places.out))
    if places.store.exists():
        refuse_busy(str(places.store))
    retained: dict[str, Any] = {"retain_epochs": KEEP_ALL} if arguments.query == "q12" else {}
    with waiting(console, f"starting Spark for {arguments.query} …"):
        session = md.spark(master=arguments.master, app_name=f"meander nexmark {arguments.query}")
        try:
            started = flow.start(places.store, spark=session, parallelism=arguments.parallelism, **retained)
        except BaseException:
            session.stop()
            raise
    meter, stop = Meter(), Stop()
    started.on_epoch(meter)
    restore = stop.on_signals()
    try:
        console.print(f"{arguments.query}: {described(arguments.query)}", soft_wrap=True)
        watch(started.await_termination, meter, StatusLine(console) if console.is_terminal else Lines(console), stop.wanted)
        started.stop()
        return _summary(arguments, started, meter, "stopped" if stop.wanted.is_set() else "finished", console)
    finally:
        started.stop()
        restore()
        session.stop()


def _summary(arguments: argparse.Namespace, run: Run, meter: Meter, outcome: str, console: Any) -> dict[str, Any]:
    reading, status = meter.read(), run.status()
    seconds = meter.seconds
    events = arguments.events if outcome == "finished" else 0
    console.print(
        f"{outcome}: {wording.plural(reading.epochs if reading else 0, 'epoch')} in {wording.duration(seconds)}, "
        f"{wording.count(events / seconds if seconds else 0)} events/s, {wording.plural(status['rows_out'], 'row')} out",
        soft_wrap=True,
    )
    for name, operator in status["operators"].items():
        console.print(f"state of '{name}': {wording.plural(operator['rows'], 'row')}, {wording.size(operator['bytes'])}", soft_wrap=True)
    if status["dead_letters"]:
        console.print(wording.plural(status["dead_letters"], "dead letter"))
    return {
        "query": arguments.query,
        "outcome": outcome,
        "events": arguments.events,
        "seed": arguments.seed,
        "parallelism": arguments.parallelism,
        "epochs": reading.epochs if reading else 0,
        "seconds": round(seconds, 3),
        "events_per_second": round(events / seconds, 1) if seconds else 0.0,
        "rows_in": status["rows_in"],
        "rows_out": status["rows_out"],
        "dead_letters": status["dead_letters"],
    }


def _check(arguments: argparse.Namespace, tables: dict[str, Any], places: _Places, console: Any) -> dict[str, Any]:
    """The oracle's word on the result."""
    from meander import nexmark
    from meander.cli.progress import waiting
    from meander.nexmark.checking import check, taken_by

    with tempfile.TemporaryDirectory(prefix="meander-nexmark-") as folder, waiting(console, "asking DuckDB …"):
        known: dict[str, Any] = dict(nexmark.write_files(folder, arguments.events, seed=arguments.seed, workload=_workload(arguments)))
        if arguments.query == "q12":
            known["bid"] = taken_by(places.store, "bid", tables["bid"])
        rows, difference = check(arguments.query, places.out, known)
    if difference is None:
        console.print(f"checked: {wording.plural(rows, 'row')}, each equal to DuckDB's", soft_wrap=True)
    else:
        console.print(f"DIFFERENT from DuckDB's result. {difference}", soft_wrap=True, style="bold red")
    return {"equal": difference is None, "rows": rows, "difference": None if difference is None else str(difference)}
