"""``meander diff`` and ``meander apply``: edit a flow's file, see what that means, and apply the difference to the flow while it runs."""

from __future__ import annotations

import argparse
import base64
import json

from meander.cli.modify import add_change_options, add_drop_state, add_resume, drop_state, lines_of, send
from meander.cli.parser import Commands

_DIFF = """examples:
  meander diff flow.py new_flow.py
  meander diff flow.py new_flow.py --drop-state --json"""
_APPLY = """examples:
  meander apply new_flow.py --dry-run              what would happen to the plan, its columns and its state
  meander apply new_flow.py                        all of it, in force with the next epoch, or nothing; needs the code token
  meander apply new_flow.py --drop-state best      'best' begins anew; the state of all others goes on, or nothing is changed"""


def register_diff(commands: Commands) -> None:
    parser = commands.add_parser(
        "diff",
        help="what is different between two versions of a flow",
        description="What `meander apply NEW.py` would do to a flow that runs as OLD.py says. Nothing is asked and nothing is changed.",
        epilog=_DIFF,
    )
    parser.add_argument("old", metavar="OLD.py", help="a Python file that defines `flow`")
    parser.add_argument("new", metavar="NEW.py", help="another version of it")
    add_drop_state(parser)
    add_resume(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(command=diff)


def register_apply(commands: Commands) -> None:
    parser = commands.add_parser(
        "apply",
        help="change a running flow into what its file says now",
        description="Apply all that is different between a flow that runs and a file, as one change. In force with the next epoch.",
        epilog=_APPLY,
    )
    parser.add_argument("file", metavar="NEW.py", help="a Python file that defines `flow`")
    add_resume(parser)
    add_change_options(parser)
    parser.set_defaults(command=apply)


def diff(arguments: argparse.Namespace) -> int:
    from meander.cli.flow_file import load_flow
    from meander.errors import FlowError
    from meander.plan.change.become import Become
    from meander.plan.change.diff import differences
    from meander.plan.change.modify import StateRules, modify

    old, new = load_flow(arguments.old).plan(), load_flow(arguments.new).plan()
    try:
        _, effects = modify(old, [Become(new, arguments.resume)], StateRules(drop_state(arguments)))
    except FlowError as error:
        found = differences(old.record(), new.record())
        if not found and old.digest() == new.digest():
            print(json.dumps({"plan": []}) if arguments.json else "both are the same flow")
            return 0
        if not arguments.json:
            print("\n".join(f"  plan: {phrase}" for phrase in found))
        raise FlowError(f"this cannot be applied to a running flow: {error}") from error
    print(json.dumps(effects.to_json()) if arguments.json else "\n".join(lines_of(effects.to_json())))
    return 0


def apply(arguments: argparse.Namespace) -> int:
    from meander.cli.flow_file import load_flow
    from meander.plan.change.become import Become
    from meander.plan.change.code import pack_changes

    plan = load_flow(arguments.file).plan()
    body = {"code": base64.b64encode(pack_changes([Become(plan, arguments.resume)])).decode()}
    return send(arguments, body, None)
