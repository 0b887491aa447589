"""``meander bench``: hands over to meander.bench, which is imported only then."""

from __future__ import annotations

import argparse

from meander.cli.interruption import interrupted_by_sigterm
from meander.cli.parser import Commands
from meander.errors import ConfigError

_EXAMPLES = """examples:
  meander bench throughput --events 10000000 --keys 1000000
  meander bench growth --json
  meander bench floor
  meander bench rescale --state 1GB --plot rescale.png
  meander bench scaling --slots 1,2,4"""


def register(commands: Commands, with_options: bool = True) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure Meander beside Spark's own engine",
        description="Measure Meander beside Spark's own stateful streaming, on the same input, in the same invocation.",
        epilog=_EXAMPLES,
    )
    if not with_options:
        return
    try:
        from meander.bench.main import add_arguments, run_bench
    except ModuleNotFoundError as error:
        raise ConfigError(f"bench: {error}; install the benchmarks' dependencies with: pip install 'meander-streaming[bench]'") from error
    add_arguments(parser)

    def run(arguments: argparse.Namespace) -> int:
        with interrupted_by_sigterm():  # what is measured runs in sessions of its own, and would go on
            return run_bench(arguments)

    parser.set_defaults(command=run)
