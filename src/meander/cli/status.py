"""``meander status``: where a flow is, from its store alone, beside a running flow or without one; or what its control plane says."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from meander.cli import wording
from meander.cli.change import add_address
from meander.cli.parser import Commands
from meander.errors import ConfigError

_EXAMPLES = """examples:
  meander status state/                            from the store alone, also when nothing runs
  meander status state/ --json | jq .rows_in
  meander status                                   from the control plane of this machine: stages, executors, rates
  meander status --url http://127.0.0.1:9010"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "status",
        help="where a flow is, from its store or its control plane",
        description="Where a flow is: epoch, rows, state and whether a live run holds the store. Reads the store alone, and only reads. "
        "Without a store, or with --url, the flow's control plane is asked: it knows stages, executors and rates, too.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "store", metavar="STORE", nargs="?", help="the folder that is the flow's store; without it the control plane is asked"
    )
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")
    parser.add_argument("--no-color", action="store_true", help="plain text")
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    if arguments.store is not None and arguments.url is not None:
        raise ConfigError("give a store or --url, not both")
    if arguments.store is None:
        from meander.control.client import Client

        status = Client(arguments.url, arguments.token).status()
    else:
        status = read_status(arguments.store)
    if arguments.json:
        print(json.dumps(status))
    elif arguments.store is None:
        _print_running(status, arguments.no_color)
    else:
        _print(status, arguments.store, arguments.no_color)
    return 0


def read_status(url: str) -> dict[str, Any]:
    """The status as plain data."""
    from meander.cli.store_view import open_existing, owner_of
    from meander.metrics import late_by_operator
    from meander.state.log import readable_epochs
    from meander.state.manifest import operator_of

    store, manifest = open_existing(url)
    owner = owner_of(store)
    epochs = readable_epochs(store)
    return {
        "store": store.url,
        "flow": manifest.plan.get("flow"),
        "running": owner.live,
        "owner": owner.name if owner.live else None,
        "epoch": manifest.epoch,
        "generation": manifest.generation,
        "last_epoch_at": manifest.now or None,
        "epochs_readable": [epochs[0], epochs[-1]] if epochs else [],
        "rows_in": manifest.totals.get("rows_in", 0),
        "rows_out": manifest.totals.get("rows_out", 0),
        "dead_letters": manifest.totals.get("dead_letters", 0),
        "late_rows": manifest.totals.get("late_rows", 0),
        "late_rows_of": late_by_operator(manifest.totals),
        "tables": {
            name: {
                "keys": list(table.keys),
                "parallelism": max(manifest.routing[operator_of(name)]) + 1 if operator_of(name) in manifest.routing else None,
                "segments": len(table.segments),
                "rows": table.rows,
                "bytes": table.bytes,
            }
            for name, table in sorted(manifest.tables.items())
        },
    }


def _print(status: dict[str, Any], shown_as: str, no_color: bool) -> None:
    from rich.table import Table

    from meander.cli.progress import make_console

    console = make_console(False, no_color)
    running = f"[green]running[/] ({status['owner'] or 'unknown process'})" if status["running"] else "[yellow]not running[/]"
    when = f", {wording.ago(time.time() - status['last_epoch_at'])}" if status["last_epoch_at"] else ""
    readable = status["epochs_readable"]
    facts = Table.grid(padding=(0, 2))
    facts.add_row("flow", f"[bold]{status['flow'] or '(no epoch yet)'}[/], {running}")
    facts.add_row("store", status["store"])
    facts.add_row("epoch", f"{status['epoch']}{when} (generation {status['generation']})")
    facts.add_row("rows", f"{wording.count(status['rows_in'])} in, {wording.count(status['rows_out'])} out")
    dead = wording.count(status["dead_letters"])
    facts.add_row("dead letters", f"[red]{dead}[/]" if status["dead_letters"] else dead)
    _add_late(facts, status["late_rows"], status["late_rows_of"])
    if readable:
        facts.add_row("readable", f"epochs {readable[0]} to {readable[1]}" if readable[0] < readable[1] else f"epoch {readable[0]}")
    console.print(facts, soft_wrap=True)
    if status["dead_letters"]:
        console.print(f"look at the dead letters: meander dead-letters {shown_as}", style="dim", soft_wrap=True, markup=False)
    if status["tables"]:
        console.print()
        console.print(tables_of(status["tables"]))


def _print_running(status: dict[str, Any], no_color: bool) -> None:
    """Print the status that a control plane gives."""
    from rich import box
    from rich.table import Table

    from meander.cli.progress import make_console

    console = make_console(False, no_color)
    facts = Table.grid(padding=(0, 2))
    colour = {"running": "green", "failed": "red"}.get(status["state"], "yellow")
    facts.add_row("flow", f"[bold]{status['flow']}[/], [{colour}]{status['state']}[/]")
    facts.add_row("epoch", f"{status['epoch']} (generation {status['generation']}), {wording.duration(status['epoch_seconds'])} each")
    rate = f"{wording.count(status['rows_per_second'])} rows/s while at work"
    facts.add_row("rows", f"{wording.count(status['rows_in'])} in, {wording.count(status['rows_out'])} out, {rate}")
    facts.add_row("waiting", wording.plural(status["waiting"], "row"))
    facts.add_row("dead letters", wording.count(status["dead_letters"]))
    _add_late(facts, status.get("late_rows", 0), {name: of.get("late_rows", 0) for name, of in status.get("operators", {}).items()})
    if status.get("holding"):
        facts.add_row("holding", f"[yellow]for {wording.duration(status['holding']['seconds'])}[/]")
    if status["autoscaler"] is not None:
        facts.add_row("autoscaler", "; ".join((*status["autoscaler"]["reasons"], *status["autoscaler"]["notes"])) or "nothing decided yet")
    console.print(facts, soft_wrap=True)
    if status.get("holding"):
        console.print(status["holding"]["why"], style="yellow", markup=False, soft_wrap=True)
    if status["error"]:
        console.print(status["error"], style="red", markup=False, soft_wrap=True)
    stages = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("stage", "operators", "slots", "on executors", "records/s", "true rate"):
        stages.add_column(title, justify="left" if title in ("operators", "on executors") else "right")
    for stage in status["stages"]:
        names = ", ".join(f"[bold]{op['name']}[/]" if op["name"] in stage["stateful"] else op["name"] for op in stage["operators"])
        true_rate = "-" if stage["true_rate"] is None else wording.count(stage["true_rate"])
        cells = (", ".join(stage["executors"]) or "-", wording.count(stage["records_per_second"]), true_rate)
        stages.add_row(str(stage["number"]), names, str(stage["slots"] or "-"), *cells)
    console.print(stages)
    executors = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("executor", "slots", "of stages"):
        executors.add_column(title)
    for name, executor in status["executors"].items():
        note = ", leaving" if executor["leaving"] else "" if executor["introduced"] else ", being introduced"
        executors.add_row(name, f"{executor['slots']}{note}", ", ".join(map(str, executor["stages"])) or "-")
    console.print(executors)


def _add_late(facts: Any, total: int, by_operator: dict[str, int]) -> None:
    """A line on late rows, where there are any."""
    if total:
        of = ", ".join(f"{wording.count(rows)} of {name}" for name, rows in by_operator.items() if rows)
        facts.add_row("late rows", f"[yellow]{wording.count(total)}[/]" + (f" ({of})" if of else ""))


def tables_of(tables: dict[str, dict[str, Any]]) -> Any:
    """The stateful operators as a table for the terminal."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("operator", "keyed by"):
        shown.add_column(title)
    for title in ("slots", "segments", "rows stored", "bytes"):
        shown.add_column(title, justify="right")
    for name, table in tables.items():
        cells = (wording.count(table["segments"]), wording.count(table["rows"]), wording.size(table["bytes"]))
        shown.add_row(name, ", ".join(table["keys"]), str(table["parallelism"] or "-"), *cells)
    return shown
