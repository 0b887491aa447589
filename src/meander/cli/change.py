"""``meander rescale``, ``meander migrate`` and ``meander evacuate``: change a flow while it runs, through its control plane."""

from __future__ import annotations

import argparse
import json

from meander.cli import wording
from meander.cli.parser import Commands, Parser
from meander.errors import ConfigError
from meander.settings import STRATEGIES

_RESCALE = """examples:
  meander rescale counts 4
  meander rescale counts 8 --strategy prefetch --url http://127.0.0.1:9010"""
_MIGRATE = """examples:
  meander migrate counts --to 1                    all of an operator's state to executor 1; `meander status` shows the executors
  meander migrate counts totals --to 1 --key-groups 0-31,64"""
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
        choices=STRATEGIES,
        default="hybrid",
        help="how the new owners get the state that moves (default: hybrid, hot key groups at once and the rest in the background)",
    )
    _finish(parser)
    parser.set_defaults(command=rescale)


def register_migrate(commands: Commands) -> None:
    parser = commands.add_parser(
        "migrate",
        help="stateful operators, or key groups of theirs, to another executor",
        description="Have an executor own stateful operators of a running flow, or some of their key groups. Nothing is stopped.",
        epilog=_MIGRATE,
    )
    parser.add_argument("operators", metavar="OPERATOR", nargs="+", help="stateful operators' names")
    parser.add_argument("--to", metavar="EXECUTOR", required=True, help="an executor's id")
    parser.add_argument("--key-groups", metavar="N-M,…", help="which key groups (default: all)")
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="hybrid",
        help="how the executor gets the state (default: hybrid, its cache is filled first)",
    )
    _finish(parser)
    parser.set_defaults(command=migrate)


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


def migrate(arguments: argparse.Namespace) -> int:
    from meander.control.client import Client

    groups = None if arguments.key_groups is None else numbers(arguments.key_groups)
    done = Client(arguments.url, arguments.token).migrate(arguments.operators, arguments.to, groups, arguments.strategy)
    if arguments.json:
        print(json.dumps(done))
        return 0
    names, moved = ", ".join(f"'{name}'" for name in done["operators"]), wording.plural(done["moved"], "key group")
    print(f"{moved} of {names} moved to executor {done['executor']}, from epoch {done['epoch']} on, in {wording.duration(done['seconds'])}")
    for failure in done["failures"]:
        print(f"fetched on first use instead: {failure}")
    return 0


def numbers(text: str) -> list[int]:
    """
    >>> numbers("0-3,8")
    [0, 1, 2, 3, 8]
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(f"--key-groups {text}: write numbers and ranges, such as 0-31,64")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def evacuate(arguments: argparse.Namespace) -> int:
    from meander.control.client import Client

    done = Client(arguments.url, arguments.token).evacuate(arguments.executor)
    print(json.dumps(done) if arguments.json else f"executor '{done['executor']}' gets no slot any more; it has {done['slots']} now")
    return 0
