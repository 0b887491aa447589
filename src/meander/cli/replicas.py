"""``meander replicas``: list the replicas of a flow, change their number, and restart them one
after the other."""

from __future__ import annotations

import argparse
import json
import socket
import time
from typing import Any

from meander.cli import wording
from meander.cli.parser import Commands
from meander.errors import ConfigError

_EXAMPLES = """examples:
  meander replicas state/                          the replicas, and how far each is behind
  meander replicas add --store state/              one more, at work when the command returns
  meander replicas drain b --store state/          b finishes its epoch and leaves
  meander replicas restart --store state/          one after the other, each when the one before has caught up

add, drain and restart are done by the supervisor: the process of `meander run ... --replicas N`."""
_VERBS = ("list", "add", "drain", "restart")


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "replicas",
        help="the replicas of a flow: list, add, drain, restart",
        description="The replicas that run a flow together on one store, and changes of their number while they run.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("what", metavar="STORE | list | add | drain | restart", help="a store, whose replicas are listed; or what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="which replica: to drain, or alone to restart")
    parser.add_argument("--store", metavar="URL", help="the flow's store: a folder, s3://… or redis://…")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many to add (1)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="how long to wait until it is done, in seconds (300)")
    parser.add_argument("--json", action="store_true", help="the answer as one JSON object")
    parser.add_argument("--no-color", action="store_true", help="plain text")
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    verb, url = _meaning(arguments)
    if verb == "list":
        roster = read(url)
        if arguments.json:
            print(json.dumps(roster))
        else:
            _print(roster, arguments.no_color)
        return 0
    if verb == "drain" and arguments.name is None:
        raise ConfigError("drain needs the replica's name, as in: meander replicas drain b --store state/")
    if verb == "add" and arguments.name is not None:
        raise ConfigError("replicas get their names themselves: leave it out; --count N adds several")
    return _ask(arguments, verb, url)


def _meaning(arguments: argparse.Namespace) -> tuple[str, str]:
    """The command, and the store it is for."""
    if arguments.what in _VERBS:
        if arguments.store is None:
            raise ConfigError(f"say of which store: meander replicas {arguments.what} --store state/")
        return arguments.what, arguments.store
    if arguments.store is not None or arguments.name is not None:
        raise ConfigError(f"there is no '{arguments.what}' to do; there are: {', '.join(_VERBS)}, or a store alone, to list its replicas")
    return "list", arguments.what


def read(url: str) -> dict[str, Any]:
    """The roster of a store that holds a flow, or in which one is being started."""
    from meander.clock import SystemClock
    from meander.replicate.requests import SUPERVISOR
    from meander.replicate.roster import read_roster
    from meander.state.stores.opening import checked_store

    store = checked_store(url)
    if store.get(SUPERVISOR) is None:
        from meander.cli.store_view import open_existing

        open_existing(url)
    return read_roster(store, SystemClock())


def _ask(arguments: argparse.Namespace, verb: str, url: str) -> int:
    from meander.clock import SystemClock
    from meander.replicate.requests import ask
    from meander.state.stores.opening import checked_store

    store = checked_store(url)
    more = {"count": arguments.count} if verb == "add" else {"name": arguments.name}

    def tell(text: str) -> None:
        if not arguments.json:
            print(text, flush=True)

    done = ask(store, SystemClock(), verb, arguments.timeout, tell, **more)
    if arguments.json:
        print(json.dumps(done))
        return 0
    names = ", ".join(done["names"])
    print({"add": f"replica {names} is at work", "drain": f"replica {names} has left", "restart": f"restarted: {names}"}[verb])
    return 0


def _print(roster: dict[str, Any], no_color: bool) -> None:
    from meander.cli.progress import make_console

    console = make_console(False, no_color)
    supervisor = roster["supervisor"]
    who = f"supervised by process {supervisor['process']} on {supervisor['host']}" if supervisor else "no supervisor"
    console.print(f"{roster['store']}, epoch {roster['epoch']}; {who}", soft_wrap=True, markup=False)
    if not roster["replicas"]:
        console.print("no replica has run on it: `meander run ... --replicas 2` starts two")
        return
    console.print(table_of(roster["replicas"]))
    for one in roster["replicas"]:
        if one["state"] == "given up":
            console.print(
                f"replica {one['name']} was given up: {one['error']}; see {one['log']}", style="red", markup=False, soft_wrap=True
            )


def table_of(replicas: list[dict[str, Any]]) -> Any:
    """Replicas as a table for the terminal."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("replica", "state"):
        shown.add_column(title, no_wrap=True)
    for title in ("epoch", "behind", "restarts"):
        shown.add_column(title, justify="right", no_wrap=True)
    for title in ("process", "url"):
        shown.add_column(title, no_wrap=True)
    for one in replicas:
        numbers = ("-" if one[name] is None else wording.count(one[name]) for name in ("epoch", "lag", "restarts"))
        duties = [duty for duty, has in (("leads", one.get("leads")), ("keeps house", one.get("keeps_house"))) if has]
        shown.add_row(one["name"], _state(one) + (f" ({', '.join(duties)})" if duties else ""), *numbers, _process(one), one["url"] or "-")
    return shown


def _process(one: dict[str, Any]) -> str:
    if one["process"] is None:
        return "-"
    return str(one["process"]) if one["host"] == socket.gethostname() else f"{one['process']} on {one['host']}"


def _state(one: dict[str, Any]) -> str:
    colour = {"running": "green", "given up": "red", "silent": "red"}.get(one["state"], "yellow")
    since = one.get("silent_since") if one["state"] == "silent" and one["host"] == socket.gethostname() else None  # by another clock
    return f"[{colour}]{one['state']}[/]" + (f" for {wording.duration(max(0.0, time.time() - since))}" if since else "")
