"""``meander dead-letters``: the rows that a flow could not process, and why."""

from __future__ import annotations

import argparse
import json
from typing import Any

from meander.cli import wording
from meander.cli.parser import Commands, at_least_0

_ROWS = 20
_EXAMPLES = """examples:
  meander dead-letters state/                     the newest 20: epoch, operator, position, reason and content
  meander dead-letters state/ --limit 0           all of them
  meander dead-letters state/ --json | jq -r .reason | sort | uniq -c

A flow may run meanwhile: it is not disturbed. In Python: md.read_dead_letters("state/")."""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "dead-letters",
        help="the rows that a flow could not process",
        description="The rows that could not be read, or that an operator could not take, each with the reason and where it came from.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("store", metavar="STORE", help="the folder that is the flow's store")
    parser.add_argument("--limit", type=at_least_0, metavar="N", help=f"the newest N, 0 for all (default: {_ROWS}, or all with --json)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--no-color", action="store_true", help="plain text")
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    import meander as md
    from meander.cli.store_view import open_existing

    _, manifest = open_existing(arguments.store)
    letters = md.read_dead_letters(arguments.store).sort_by("epoch").to_pylist()
    limit = arguments.limit if arguments.limit is not None else (0 if arguments.json else _ROWS)
    shown = letters[-limit:] if limit else letters
    if arguments.json:
        for letter in shown:
            print(json.dumps(letter))
        return 0
    _print(shown, len(letters), manifest.totals.get("dead_letters", 0), arguments.no_color)
    return 0


def _print(shown: list[dict[str, Any]], there: int, counted: int, no_color: bool) -> None:
    from rich.markup import escape

    from meander.cli.progress import make_console

    console = make_console(False, no_color)
    for letter in shown:
        where = f"epoch {letter['epoch']}, {letter['operator']}, {letter['position']}"
        console.print(f"[bold]{escape(where)}[/]: {escape(letter['reason'])}", soft_wrap=True)
        console.print(f"    {letter['content']}", style="dim", soft_wrap=True, markup=False)
    if len(shown) < there:
        console.print(f"the newest {len(shown)} of {wording.count(there)}; --limit 0 shows all", style="dim")
    elif not there and counted:
        console.print(f"{wording.plural(counted, 'dead letter')}, in the folder that the flow names with dead_letters=", soft_wrap=True)
    elif not there:
        console.print("there are no dead letters")
