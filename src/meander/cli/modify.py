"""``meander replace``, ``insert``, ``remove`` and ``modifications``: change a running flow through
its control plane.

Changes in SQL text are sent as text, and need only the token. Python code and sinks are sent as
code, and need the code token.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import json
import os
import time
from typing import Any

from meander.cli import wording
from meander.cli.change import add_address
from meander.cli.parser import Commands, Parser
from meander.errors import ConfigError

_REPLACE = """examples:
  meander replace positive --filter "amount > 10"
  meander replace positive --filter "amount > 10" --dry-run
  meander replace totals --aggregate "n=count()" --aggregate "total=sum(amount)" --aggregate "most=max(amount)"
  meander replace clean --code fixes.py:clean      a function, an operator or a processor of a Python file; needs the code token"""
_INSERT = """examples:
  meander insert no_bots --filter "customer <> 'bot'" --after positive
  meander insert tap --parquet tap/ --after no_bots      a sink takes a copy of the rows there; needs the code token"""
_REMOVE = """examples:
  meander remove no_bots
  meander remove totals --drop-state               it keeps state, which goes with it
  meander remove totals --drop-state totals --drop-state best      and so does 'best', behind it"""
_HISTORY = """examples:
  meander modifications                            of the flow that runs
  meander modifications state/ --json              from the store alone, also when nothing runs"""


def register_replace(commands: Commands) -> None:
    parser = commands.add_parser(
        "replace",
        help="another operator under the same name, while the flow runs",
        description="Put another operator in the place of one. In force with the next epoch, which is tried before it is committed.",
        epilog=_REPLACE,
    )
    parser.add_argument("operator", metavar="OPERATOR", help="the operator that is replaced")
    _add_operator(parser)
    add_change_options(parser)
    parser.set_defaults(command=replace)


def register_insert(commands: Commands) -> None:
    parser = commands.add_parser(
        "insert",
        help="a new operator between others, while the flow runs",
        description="Put a new operator behind another one. In force with the next epoch, which is tried before it is committed.",
        epilog=_INSERT,
    )
    parser.add_argument("operator", metavar="NAME", help="the new operator's name")
    parser.add_argument("--after", metavar="OPERATOR", required=True, help="what it stands behind")
    parser.add_argument(
        "--before", metavar="OPERATOR", action="append", help="only in front of this operator, and not of all that read --after"
    )
    _add_operator(parser)
    add_change_options(parser)
    parser.set_defaults(command=insert)


def register_remove(commands: Commands) -> None:
    parser = commands.add_parser(
        "remove",
        help="take an operator out, while the flow runs",
        description="Take an operator out: operators that read it read its input instead. In force with the next epoch.",
        epilog=_REMOVE,
    )
    parser.add_argument("operator", metavar="OPERATOR", help="the operator that goes")
    add_change_options(parser)
    parser.set_defaults(command=remove)


def register_modifications(commands: Commands) -> None:
    parser = commands.add_parser(
        "modifications",
        help="how a flow was changed while it ran",
        description="All requested changes, the oldest first: author, changes and result.",
        epilog=_HISTORY,
    )
    parser.add_argument("store", metavar="STORE", nargs="?", help="a store (default: ask the control plane)")
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON array")
    parser.set_defaults(command=modifications)


def add_change_options(parser: Parser) -> None:
    """The options of every change."""
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen to the plan, its columns and its state")
    add_drop_state(parser)
    parser.add_argument("--request-id", metavar="ID", help="a request that is repeated with its id is done once")
    parser.add_argument("--author", metavar="NAME", help="for the history (default: the user's name)")
    parser.add_argument("--timeout", metavar="T", default="60s", help="how long the first epoch may take (default: 60s)")
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="the answer as one JSON object")


def add_drop_state(parser: argparse._ActionsContainer) -> None:
    """The option for dropping state."""
    parser.add_argument(
        "--drop-state",
        metavar="OPERATOR",
        nargs="?",
        const=True,
        action="append",
        help="drop the state of this operator; may be repeated; without a name: of the operator that is changed, or, with a "
        "whole file, of all operators that cannot continue it",
    )


def add_resume(parser: argparse._ActionsContainer) -> None:
    """The options for sources that differ in a whole file."""
    resume = parser.add_mutually_exclusive_group()
    resume.add_argument("--resume", action="store_true", default=None, help="sources that differ continue where the former ones are")
    resume.add_argument("--restart", dest="resume", action="store_false", help="sources that differ begin at their beginning")


def drop_state(arguments: argparse.Namespace, changed: list[str] | None = None) -> bool | list[str]:
    """The operators whose state may be dropped; ``changed`` are those meant by the option without a
    name."""
    given = arguments.drop_state or []
    named = [name for name in given if name is not True]
    if True not in given:
        return named or False
    return True if changed is None else [*changed, *named]


def _add_operator(parser: Parser) -> None:
    kinds = parser.add_argument_group("what it is (one of)")
    kinds.add_argument("--filter", metavar="SQL", help="rows for which this holds")
    kinds.add_argument("--select", metavar="SQL", action="append", help="these columns alone; may be repeated")
    kinds.add_argument("--with-columns", metavar="NAME=SQL", action="append", help="columns beside the others; may be repeated")
    kinds.add_argument("--aggregate", metavar="NAME=AGG", action="append", help="such as total=sum(amount); may be repeated")
    kinds.add_argument("--watermark", metavar="COLUMN", help="the column that is the rows' time")
    kinds.add_argument("--parquet", metavar="DIR", help="a sink that writes Parquet files")
    kinds.add_argument(
        "--code", metavar="FILE.py:NAME", help="a function from frame to frame, an operator, a processor, a source or a sink"
    )
    parser.add_argument("--by", metavar="COLUMN", action="append", help="the key of an aggregate or a processor")
    parser.add_argument("--emit", choices=("closed", "update"), help="of an aggregate in windows")
    parser.add_argument("--lateness", metavar="T", help="of an aggregate in windows")
    parser.add_argument("--grace", metavar="T", help="of a watermark")
    parser.add_argument("--idle", metavar="T", help="of a watermark")
    parser.add_argument("--max-ahead", metavar="T", help="of a watermark")
    parser.add_argument("--backfill", metavar="NAME=VALUE", action="append", help="the value of a new aggregate for keys from before")
    resume = parser.add_mutually_exclusive_group()
    resume.add_argument("--resume", action="store_true", default=None, help="a source: continue at the position of the former one")
    resume.add_argument("--restart", dest="resume", action="store_false", help="a source: it begins at its beginning")


def replace(arguments: argparse.Namespace) -> int:
    change = {"change": "replace", "name": arguments.operator}
    return _change(arguments, change, lambda op: _md().Replace(arguments.operator, op, arguments.resume))


def insert(arguments: argparse.Namespace) -> int:
    change = {"change": "insert", "name": arguments.operator, "after": arguments.after, "before": arguments.before}
    return _change(arguments, change, lambda op: _md().Insert(arguments.operator, op, arguments.after, arguments.before))


def remove(arguments: argparse.Namespace) -> int:
    return send(arguments, {"changes": [{"change": "remove", "name": arguments.operator}]}, [arguments.operator])


def _change(arguments: argparse.Namespace, change: dict[str, Any], make: Any) -> int:
    kinds = ("filter", "select", "with_columns", "aggregate", "watermark", "parquet", "code")
    given = [kind for kind in kinds if getattr(arguments, kind) is not None]
    if len(given) != 1:
        options = ", ".join(f"--{kind.replace('_', '-')}" for kind in kinds)
        raise ConfigError(
            f"say what '{arguments.operator}' is to be, with one of {options}" + (f"; given are {len(given)}" if given else "")
        )
    (kind,) = given
    body: dict[str, Any]
    if kind in ("parquet", "code"):
        from meander.plan.change.code import pack_changes

        op = _md().parquet(arguments.parquet) if kind == "parquet" else _object_of(arguments.code, arguments.by)
        body = {"code": base64.b64encode(pack_changes([make(op)])).decode()}
    else:
        body = {"changes": [{**change, "operator": _operator(arguments, kind)}]}
    if arguments.backfill:
        body["backfill"] = {arguments.operator: {name: _number(value) for name, value in _pairs("--backfill", arguments.backfill).items()}}
    return send(arguments, body, [arguments.operator])


def _operator(arguments: argparse.Namespace, kind: str) -> dict[str, Any]:
    given = getattr(arguments, kind)
    if kind in ("with_columns", "aggregate"):
        given = _pairs(f"--{kind.replace('_', '-')}", given)
    beside = {"aggregate": ("by", "emit", "lateness"), "watermark": ("grace", "idle", "max_ahead")}.get(kind, ())
    return {kind: given, **{name: value for name in beside if (value := getattr(arguments, name)) is not None}}


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if wrong := next(
        (text for text, (name, _, value) in zip(given, pairs, strict=True) if not name.strip().isidentifier() or not value), None
    ):
        raise ConfigError(f"{option} {wrong}: write it as NAME=..., as in {option} total=...")
    return {name.strip(): value for name, _, value in pairs}


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object_of(place: str, by: list[str] | None) -> Any:
    """The object of this name in a Python file, as an operator."""
    from meander.cli.flow_file import load_names

    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        raise ConfigError(f"--code {place}: write it as FILE.py:NAME")
    names = load_names(file)
    if name not in names:
        there = ", ".join(sorted(one for one in names if not one.startswith("_"))) or "nothing"
        raise ConfigError(f"--code {place}: {file} defines no '{name}'; it defines {there}")
    found, md = names[name], _md()
    if isinstance(found, md.Processor) or (isinstance(found, type) and issubclass(found, md.Processor)):
        return md.process(found, by)
    is_operator = hasattr(found, "stateful") or hasattr(found, "placed") or hasattr(found, "cursor") or hasattr(found, "publish")
    return found if is_operator or not callable(found) else md.map_batches(found)


def _md() -> Any:
    import meander

    return meander


def send(arguments: argparse.Namespace, body: dict[str, Any], changed: list[str] | None) -> int:
    """Ask for a change, and say what has become of it. ``changed``: the operator that is named; None where it is a whole file."""
    from meander.control.client import Client
    from meander.settings import seconds

    body |= {"dry_run": arguments.dry_run, "drop_state": drop_state(arguments, changed)}
    body |= {"author": arguments.author or user(), "timeout": seconds(arguments.timeout) or 60.0}
    if arguments.request_id is not None:
        body["request_id"] = arguments.request_id
    token = arguments.token or (os.environ.get("MEANDER_CODE_TOKEN") if "code" in body else None)
    done = Client(arguments.url, token).modify(body)
    if arguments.json:
        print(json.dumps(done))
    elif arguments.dry_run:
        print("\n".join(["nothing was changed; this would be", *lines_of(done)]))
    else:
        took = f", {wording.duration(done['seconds'])} after it was asked for" if done.get("seconds") is not None else ""
        again = " already: the request was made before" if done["repeated"] else ""
        print(f"plan version {done['version']} is in force from epoch {done['epoch']} on{again or took}")
        print("\n".join(lines_of(done["effects"])[1:]))
    return 0


def lines_of(effects: dict[str, Any]) -> list[str]:
    """The effects of a change, as lines of text."""
    lines = [f"plan version {effects.get('version', '?')}"]
    lines += [f"  plan: {phrase}" for phrase in effects.get("plan", ())]
    lines += [f"  columns of '{name}': {', '.join(columns)}" for name, columns in effects.get("schemas", {}).items()]
    lines += [f"  state of '{name}': {fate}" for name, fate in effects.get("state", {}).items()]
    lines += [f"  source '{name}': where it was is forgotten" for name in effects.get("restarts", ())]
    return lines + [f"  source '{name}': it goes on where it is" for name in effects.get("go_on", ())]


def user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def modifications(arguments: argparse.Namespace) -> int:
    found = _history(arguments)
    if arguments.json:
        print(json.dumps(found))
        return 0
    if not found:
        print("the flow was never changed while it ran")
    for record in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.get("at", 0.0)))
        where = f" in epoch {record['epoch']}" if "epoch" in record else ""
        print(f"{when}  {record.get('id')}  {record.get('author') or 'somebody'}: {record['verdict']}{where}")
        for phrase in record.get("effects", {}).get("changes", ()):
            print(f"    {phrase}")
        if record.get("why"):
            print(f"    because: {_last_line(record['why'])}")
    return 0


def _history(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.store is None:
        from meander.control.client import Client

        return Client(arguments.url, arguments.token).modifications()
    from meander.cli.store_view import open_existing
    from meander.state.history import read_history

    return read_history(open_existing(arguments.store)[0])


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
