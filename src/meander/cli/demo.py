"""``meander demo``: the server-count pipeline on a local Spark, live, and checked against an independent recount."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from meander.cli import wording
from meander.cli.parser import Commands
from meander.errors import Busy, ConfigError, MeanderError

if TYPE_CHECKING:
    from rich.console import Console

    from meander.cli.demo_flow import Counts, Workload
    from meander.cli.progress import Meter, Reading

_MARK = ".meander-demo"
_RATE, _SECONDS = 25_000, 20.0
_EXAMPLES = """examples:
  meander demo                                    about half a minute, set-up aside; 500,000 edits
  meander demo --rate 5000 --seconds 10           a smaller one
  meander demo --rate 0 --events 2000000          as fast as this machine goes
  meander demo --keep                             go on with the last demo, for instance after kill -9

The folder (./meander-demo) holds the output as Parquet files and the flow's state; it is wiped at the start if a demo made it."""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="count edits per server for half a minute, and check the result",
        description="Wikipedia-style edits → parse → filter → count per server → Parquet, on a local Spark, with a generated workload. "
        "Ends by itself and compares its counts with an independent recount of the input (exit code 1 where they differ).",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--events", type=int, metavar="N", help="edits in all (default: rate × seconds)")
    parser.add_argument("--rate", type=float, metavar="R", help=f"edits per second, 0 for as fast as it goes (default: {_RATE:,})")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"how long edits come in (default: {_SECONDS:g})")
    parser.add_argument("--folder", metavar="DIR", default="meander-demo", help="where output and state go (default: ./meander-demo)")
    parser.add_argument("--keep", action="store_true", help="continue the last demo instead of deleting it")
    parser.add_argument("--no-color", action="store_true", help="plain text")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output; the rest goes to standard error")
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    import meander as md
    from meander.cli.demo_flow import build_flow
    from meander.cli.interruption import Stop
    from meander.cli.progress import Lines, Meter, make_console, waiting, watch

    folder = Path(arguments.folder)
    workload = prepare(folder, choose_workload(arguments), arguments.keep)
    store, output = folder / "state", folder / "out"
    flow = build_flow(workload, output)
    console = make_console(arguments.json, arguments.no_color)
    console.print("[bold]Meander demo[/]: Wikipedia-style edits → parse → only people → count per server → Parquet")
    began = time.monotonic()
    with waiting(console, "starting a local Spark …"):
        session = md.spark(app_name="meander demo")
    meter, stop = Meter(keep_latencies=True), Stop()
    restore = stop.on_signals()
    try:
        run = flow.start(store, spark=session, parallelism=2)
        run.on_epoch(meter)
        before = run.status()
        console.print(f"Spark is up after {wording.duration(time.monotonic() - began)}; {_describe(workload)} come in", soft_wrap=True)
        if before["epoch"]:
            console.print(
                f"going on after epoch {before['epoch']}: {wording.count(before['rows_in'])} of them are counted already", soft_wrap=True
            )
        display = _Panel(console, workload, store, before["rows_in"]) if console.is_terminal else Lines(console)
        try:
            watch(run.await_termination, meter, display, stop.wanted)
        finally:
            run.stop()
        status = run.status()
    finally:
        restore()
        session.stop()
    if stop.wanted.is_set():
        console.print(f"stopped after epoch {status['epoch']}. Go on where it was: meander demo --keep --folder {folder}", soft_wrap=True)
        return 130
    return _conclude(console, arguments, workload, folder, meter, status)


def choose_workload(arguments: argparse.Namespace) -> Workload:
    from meander.cli.demo_flow import Workload

    rate = _RATE if arguments.rate is None else arguments.rate
    seconds = _SECONDS if arguments.seconds is None else arguments.seconds
    if rate < 0 or seconds <= 0:
        raise ConfigError(f"--rate {rate:g} --seconds {seconds:g}: the rate must be 0 or above, and the seconds above 0")
    if arguments.events is not None and arguments.seconds is not None and arguments.rate is not None:
        raise ConfigError("--events, --rate and --seconds together say one thing too many: leave one out")
    if arguments.events is not None and arguments.seconds is not None:
        rate = arguments.events / seconds
    events = arguments.events if arguments.events is not None else round((rate or _RATE) * seconds)
    if events < 1:
        raise ConfigError(f"--events {events}: at least one edit must come in")
    return Workload(events, rate)


def prepare(folder: Path, workload: Workload, keep: bool) -> Workload:
    """Make the demo's folder ready; nothing that a demo did not make is ever removed."""
    from meander.cli.demo_flow import Workload
    from meander.cli.store_view import owner_of
    from meander.state.stores.contract import open_store

    mark = folder / _MARK
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--folder {folder}: this is a file; name a folder")
    if mark.exists():
        if (owner := owner_of(open_store(folder / "state"))).live:
            raise Busy(f"another demo runs in {folder} ({owner.name}); wait for it, or give this one another --folder")
        if keep:
            return Workload.from_json(mark.read_text())
        shutil.rmtree(folder)
    elif folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"--folder {folder}: there is something in it that no demo made; name an empty or a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(workload.to_json())
    except OSError as error:
        raise ConfigError(f"--folder {folder}: cannot be made ({error.strerror}); name another") from error
    return workload


class _Panel:
    """The live view on a terminal."""

    def __init__(self, console: Console, workload: Workload, store: Path, before: int) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            BarColumn(bar_width=40), TextColumn("{task.percentage:3.0f}%"), MofNCompleteColumn(), TextColumn("edits"), console=console
        )
        self._task = self._bar.add_task("", total=workload.events, completed=before)
        self._before = before
        self._store = store
        self._keys, self._read = 0, float("-inf")
        self._live = Live(self._bar, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> _Panel:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, reading: Reading | None) -> None:
        from rich.console import Group
        from rich.table import Table

        if reading is None:
            return
        self._count_keys()
        self._bar.update(self._task, completed=self._before + reading.rows_in)
        facts = Table.grid(padding=(0, 3))
        facts.add_row(
            f"epoch [bold]{reading.epoch}[/]",
            f"[bold]{wording.count(reading.rate)}[/] rows/s",
            f"latency p50 [bold]{wording.duration(reading.p50)}[/], p99 [bold]{wording.duration(reading.p99)}[/]",
            f"state [bold]{wording.count(self._keys)}[/] keys, {wording.size(reading.state_bytes)}",
        )
        self._live.update(Group(self._bar, facts))

    def _count_keys(self) -> None:
        """The number of keys, once a second; stored rows would count a key once per epoch that touched it."""
        import meander as md
        from meander.cli.demo_flow import OPERATOR

        if time.monotonic() - self._read > 1.0:
            self._read = time.monotonic()
            try:
                self._keys = md.read_state(self._store, OPERATOR).num_rows
            except MeanderError:  # no epoch yet, or the store moved on: the next look will do
                return


def _describe(workload: Workload) -> str:
    pace = f"at {wording.count(workload.rate)} a second" if workload.rate else "as fast as they are taken"
    return f"{wording.count(workload.events)} edits {pace}"


def _conclude(
    console: Console, arguments: argparse.Namespace, workload: Workload, folder: Path, meter: Meter, status: dict[str, Any]
) -> int:
    from meander.cli.demo_flow import OPERATOR, counts_in_output, counts_in_state, differences, recount

    store, output = folder / "state", folder / "out"
    with console.status("counting the input again, with Python's own json and a dict …"):
        expected = recount(workload)
        state = counts_in_state(store)
        wrong = {"state": differences(state, expected), "output": differences(counts_in_output(output), expected)}
    reading = meter.read()
    rows, epochs = (reading.rows_in, reading.epochs) if reading else (0, 0)
    rate = rows / meter.seconds if meter.seconds else 0.0
    p50, p99 = meter.latency(50, 99)
    warm50, warm99 = meter.latency(50, 99, second_half=True)
    table = status["operators"][OPERATOR]
    _print_top(console, state)
    facts = {
        "epochs": f"{epochs}, each committed once, with input, state and output together",
        "rows": f"{wording.count(rows)} in, {wording.count(reading.rows_out if reading else 0)} out",
        "rate": f"{wording.count(rate)} rows/s over {wording.duration(meter.seconds)}",
        "latency": f"p50 {wording.duration(p50)}, p99 {wording.duration(p99)} from an edit's birth to its publication, cold start included",
        "": f"p50 {wording.duration(warm50)}, p99 {wording.duration(warm99)} in the second half of the time",
        "state": f"{len(state)} keys in {table['segments']} segments, {wording.size(table['bytes'])}, in {store}",
        "output": f"{len(list(output.glob('*.parquet')))} Parquet files in {output}",
    }
    for name, fact in facts.items():
        console.print(f"{name:<10} {fact}", soft_wrap=True)
    failed = any(wrong.values())
    if failed:
        where = "; ".join(f"{name}: {', '.join(servers[:3])}" for name, servers in wrong.items() if servers)
        console.print(f"[bold red]recount    DIFFERS[/] on {where}. This is a bug: keep {folder} and report it", soft_wrap=True)
    else:
        console.print(
            f"recount    [bold green]equal[/]: state and output of {len(expected)} servers are what counting the input independently gives",
            soft_wrap=True,
        )
    _print_next(console, folder)
    if arguments.json:
        result = {
            "demo": {"events": workload.events, "rate": workload.rate, "seed": workload.seed},
            "epochs": epochs,
            "rows_in": rows,
            "rows_out": reading.rows_out if reading else 0,
            "rows_per_second": round(rate, 1),
            "latency_ms": {"p50": round(p50 * 1000, 1), "p99": round(p99 * 1000, 1)},
            "latency_ms_second_half": {"p50": round(warm50 * 1000, 1), "p99": round(warm99 * 1000, 1)},
            "state": {"keys": len(state), "segments": table["segments"], "bytes": table["bytes"], "store": str(store)},
            "output": str(output),
            "recount": "differs" if failed else "equal",
        }
        print(json.dumps(result), flush=True)
    return 1 if failed else 0


def _print_top(console: Console, state: Counts) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("server")
    table.add_column("edits", justify="right")
    table.add_column("bytes changed", justify="right")
    for server, (edits, changed) in sorted(state.items(), key=lambda item: (-item[1][0], item[0]))[:8]:
        table.add_row(server, wording.count(edits), wording.count(changed))
    console.print(table)


def _print_next(console: Console, folder: Path) -> None:
    from meander.state.log import readable_epochs
    from meander.state.stores.contract import open_store

    store = folder / "state"
    epochs = readable_epochs(open_store(store))
    earlier = epochs[len(epochs) // 2]
    console.print("\n[bold]Try next[/]")
    if shutil.which("meander") is None:  # run by make, whose shell does not have the environment's programs
        console.print(f"  . {os.path.relpath(Path(sys.prefix) / 'bin' / 'activate')}", soft_wrap=True, markup=False)
        console.print("      so that the commands below are found", style="dim", soft_wrap=True)
    commands = [
        (f"meander state {store} counts --sql \"SELECT * FROM state WHERE server_name LIKE 'de.%'\"", "the state, in SQL"),
        (f"meander state {store} counts --epoch {earlier} --limit 5", f"the same, as it was after epoch {earlier}"),
    ]
    if Path("examples/server_counts.py").is_file():  # a wheel brings no examples along
        commands += [
            ("meander run examples/server_counts.py", "the same flow as a file of your own; Ctrl-C stops it"),
            ("python examples/crash_and_resume.py", "kill -9 in the middle, start again, nothing lost or doubled"),
        ]
    for command, meaning in commands:
        console.print(f"  {command}", soft_wrap=True, markup=False)
        console.print(f"      {meaning}", style="dim", soft_wrap=True)
