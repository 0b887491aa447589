"""``meander bench NAME``: chooses the benchmark, prints what it found."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import ModuleType

from meander.bench import backfill, changes, expiry, failover, floor, growth, modify, python_state, replicas, rescale, scaling, throughput
from meander.bench.harness.plot import check_can_plot, plot
from meander.bench.harness.report import Report
from meander.bench.harness.rounds import say

BENCHES: dict[str, tuple[ModuleType, str]] = {
    "throughput": (throughput, "keyed count and sum over Parquet, beside Spark's own aggregation"),
    "growth": (growth, "epoch time at a fixed epoch size, with more and more keys in the state"),
    "failover": (failover, "gaps in output when a process dies or hangs, beside Spark's own restart"),
    "expiry": (expiry, "state and epoch time of a flow with windows, over a hundred of them"),
    "changes": (changes, "an aggregate behind another, which is told what is replaced, beside one alone"),
    "backfill": (backfill, "the same rows over a minute, a day, 30 days and a year, beside Spark's own operators"),
    "floor": (floor, "epoch time with 1,000 events, beside Spark's own stateful micro-batch"),
    "modify": (modify, "changes of a running flow, and operators that migrate, beside stopping and starting again"),
    "python-state": (python_state, "a state machine per key in Python, beside Spark's transformWithState"),
    "replicas": (replicas, "throughput of two replicas, beside one with the cores of each"),
    "rescale": (rescale, "output gaps and latency while the parallelism changes under load, beside Spark's offline repartitioning"),
    "scaling": (scaling, "throughput and tail latency with more and more slots"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Put the benchmarks and their options under ``parser``."""
    names = parser.add_subparsers(dest="bench", metavar="NAME", required=True)
    for name, (module, text) in BENCHES.items():
        one = names.add_parser(name, help=text, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_arguments(one)
        one.add_argument("--json", action="store_true", help="print the result as one JSON object on the last line")
        one.add_argument("--plot", metavar="FILE", help="draw the result into this file, such as out.png")


def run_bench(arguments: argparse.Namespace) -> int:
    """Run the chosen benchmark and print its result. Errors are raised before or instead of a result, never beside one."""
    if arguments.plot:
        check_can_plot(arguments.plot)
    run: Callable[[argparse.Namespace], Report] = BENCHES[arguments.bench][0].run
    report = run(arguments)
    print(report.text())
    if arguments.plot:
        plot(report, arguments.plot)
        say(f"drawn: {arguments.plot}")
    if arguments.json:
        print(report.json_line())
    return 0
