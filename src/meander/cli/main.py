"""The ``meander`` command: finds the subcommand, runs it, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 a failure that the caller cannot mend (or a check that did not hold), 2 a
wrong call, flow, store or input (every MeanderError), 130 interrupted. A command is a module with
``register``: it adds its parser and sets ``command``, a function from parsed arguments to exit
code. Modules that are slow to import are imported inside that function.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from meander import __version__
from meander.cli import (
    apply,
    bench,
    change,
    control_plane,
    dead_letters,
    demo,
    modify,
    nexmark,
    replicas,
    run,
    state,
    status,
    task_manager,
    workgen,
)
from meander.cli.parser import Commands, Parser
from meander.cli.wording import as_options
from meander.errors import MeanderError

COMMANDS: dict[str, Callable[[Commands], None]] = {
    "demo": demo.register,
    "run": run.register,
    "status": status.register,
    "state": state.register,
    "dead-letters": dead_letters.register,
    "replicas": replicas.register,
    "rescale": change.register_rescale,
    "migrate": change.register_migrate,
    "evacuate": change.register_evacuate,
    "replace": modify.register_replace,
    "insert": modify.register_insert,
    "remove": modify.register_remove,
    "modifications": modify.register_modifications,
    "diff": apply.register_diff,
    "apply": apply.register_apply,
    "control-plane": control_plane.register,
    "task-manager": task_manager.register,
    "workgen": workgen.register,
    "nexmark": nexmark.register,
    "bench": bench.register,
}
_EXAMPLES = """examples:
  meander demo                                     count edits per server for half a minute, and check the result
  meander run my_flow.py --store state/            run a flow until Ctrl-C; the same command goes on after a stop or a crash
  meander status state/                            where a flow is, from its store alone
  meander state state/ totals --limit 5            its state as a table
  meander state state/ totals --sql "SELECT sum(total) FROM state"
  meander dead-letters state/                      the rows that could not be processed, and why
  meander run my_flow.py --http                    let it be changed while it runs; then, in another terminal:
  meander rescale totals 4                         four slots for an operator, from the next epoch on
  meander run my_flow.py --replicas 2              two Sparks run it together: if one is killed, the output goes on
  meander replace positive --filter "amount > 10"  another condition, from the next epoch on
  meander apply my_flow.py --dry-run               what an edited file would change; without --dry-run, change it
  meander nexmark run q5 --check                   a query of the Nexmark suite, compared row by row with DuckDB

`meander COMMAND --help` says more about each."""


def build_parser(command: str | None) -> Parser:
    """The parser; the options of benchmarks are there only when they are wanted, since they come from another package."""
    parser = Parser(
        prog="meander",
        description="Stateful streaming on PySpark: exactly-once, with state as tables you can open.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"meander {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error (may stand anywhere)")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="name", parser_class=Parser)
    for name, register in COMMANDS.items():
        if name == "bench":
            bench.register(commands, with_options=command == "bench")
        elif name == "nexmark":
            nexmark.register(commands, with_options=command == "nexmark")
        else:
            register(commands)
    for added in commands.choices.values():
        added.formatter_class = argparse.RawDescriptionHelpFormatter
        added.allow_abbrev = False
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    # Warnings go to standard error, as Python does by itself. Only the failure of a run is not logged here: the last line says it.
    logging.getLogger("meander.failure").addHandler(logging.NullHandler())
    words = [word for word in words if word != "--debug"]
    command = next((word for word in words if not word.startswith("-")), None)

    def work() -> int:
        if command is not None and command not in COMMANDS:
            sys.stderr.write(f"error: there is no command '{command}'; there are: {', '.join(COMMANDS)}\ntry: meander --help\n")
            return 2
        parser = build_parser(command)
        arguments, unknown = parser.parse_known_args(words)
        if unknown:
            sys.stderr.write(f"error: unknown option {' '.join(unknown)}\ntry: meander {command or ''} --help\n")
            return 2
        if command is None:
            parser.print_help()
            return 0
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code

    return guarded(work, debug)


def guarded(work: Callable[[], int], debug: bool = False) -> int:
    """Run a command and turn what it raises into a line and an exit code."""
    try:
        return work()
    except MeanderError as error:
        return _failed(as_options(str(error)), 2, debug)
    except KeyboardInterrupt:
        return _failed("interrupted", 130, debug)
    except BrokenPipeError:  # `meander state … | head` is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        text = next((line for line in str(error).splitlines() if line.strip()), "")
        return _failed(f"{type(error).__name__}: {text} (--debug shows where)", 1, debug)


def _failed(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"error: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
