"""``meander rescale`` and ``meander evacuate``: change a flow while it runs, through its control plane."""

from __future__ import annotations

import argparse
import json

from meander.cli import wording
from meander.cli.parser import Commands, Parser

_RESCALE = """examples:
  meander rescale counts 4
  meander rescale counts 8 --strategy prefetch --url http://127.0.0.1:9010"""
_EVACUATE = """examples:
  meander evacuate 1                               `meander status` shows the executors"""


def add_address(parser: Parser) -> None:
    """Where the control plane is."""
    parser.add_argument("--url", metavar="URL", help="the control plane's address (default: MEANDER_URL, or http://127.0.0.1:9008)")
    parser.add_argument("--token", metavar="T", help="what changes must bring where one is set (default: MEANDER_TOKEN)")


def register_rescale(commands: Commands) -> None:
    parser = commands.add_parser(
        "rescale",
        help="another number of slots for an operator, while it runs",
        description="Give a stateful operator of a running flow another number of slots. Nothing is stopped; in force with the next epoch.",
        epilog=_RESCALE,
    )
    parser.add_argument("operator", metavar="OPERATOR", help="a stateful operator's name")
    parser.add_argument("parallelism", metavar="N", type=int, help="its new number of slots")
    parser.add_argument(
        "--strategy",
        choices=("hybrid", "prefetch", "lazy", "eager"),
        default="hybrid",
        help="how the new owners get the state that moves (default: hybrid, hot key groups at once and the rest in the background)",
    )
    _finish(parser)
    parser.set_defaults(command=rescale)


def register_evacuate(commands: Commands) -> None:
    parser = commands.add_parser(
        "evacuate",
        help="move all slots away from an executor",
        description="Move all slots of a running flow away from an executor, before its machine goes.",
        epilog=_EVACUATE,
    )
    parser.add_argument("executor", metavar="EXECUTOR", help="an executor's id")
    _finish(parser)
    parser.set_defaults(command=evacuate)


def _finish(parser: Parser) -> None:
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="the answer as one JSON object")


def rescale(arguments: argparse.Namespace) -> int:
    from meander.control.client import Client

    done = Client(arguments.url, arguments.token).rescale(arguments.operator, arguments.parallelism, arguments.strategy)
    if arguments.json:
        print(json.dumps(done))
        return 0
    slots, moved = wording.plural(done["after"], "slot"), wording.plural(done["moved"], "key group")
    print(f"'{done['operator']}' has {slots} instead of {done['before']} from epoch {done['epoch']} on; {moved} moved ({done['strategy']})")
    for failure in done["failures"]:
        print(f"fetched on first use instead: {failure}")
    return 0


def evacuate(arguments: argparse.Namespace) -> int:
    from meander.control.client import Client

    done = Client(arguments.url, arguments.token).evacuate(arguments.executor)
    print(json.dumps(done) if arguments.json else f"executor '{done['executor']}' gets no slot any more; it has {done['slots']} now")
    return 0
