"""Rounds: every system once per round, in alternating order, each in a process of its own.

A slowdown of the machine for a while (another tenant, heat) then meets all systems alike, and
medians over rounds remove it.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import meander as md
from meander.bench.harness.isolation import Request, run_isolated
from meander.bench.harness.peers import PEERS, peer_settings
from meander.bench.harness.statistics import Json
from meander.bench.load.input import Input

OURS = "meander"

Measure = Callable[[str, Json], Json]
"""From a system's name and its answer to its numbers."""


def say(text: str, end: str = "\n") -> None:
    """Progress, on standard error: standard output is for the result."""
    print(text, end=end, file=sys.stderr, flush=True)


def add_common_arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument("--rounds", type=int, default=rounds, help="how often everything is measured (default: %(default)s)")
    parser.add_argument("--parallelism", type=int, default=2, help="slots of Meander, state partitions of Spark (default: %(default)s)")
    parser.add_argument("--master", default="local[2]", help="Spark's master, for all systems (default: %(default)s)")
    parser.add_argument("--memory", default="4g", help="heap of the JVM, for all systems (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the input (default: %(default)s)")
    parser.add_argument("--folder", help="where input and state are put and left; by default a temporary folder, removed at the end")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds that one run of one system may take (default: %(default)s)")


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", default=",".join(PEERS), help="peers, separated by commas; empty for none (default: %(default)s)")
    parser.add_argument(
        "--spark-setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark's to try on the peers, on top of theirs",
    )


def chosen_peers(arguments: argparse.Namespace) -> list[str]:
    peers = [name.strip() for name in arguments.against.split(",") if name.strip()]
    for name in peers:
        if name not in PEERS:
            raise md.ConfigError(f"--against {name}: there is no such peer; there are {', '.join(PEERS)}")
    return peers


def tried_settings(arguments: argparse.Namespace) -> dict[str, str]:
    pairs = [text.partition("=") for text in arguments.spark_setting]
    for name, equals, _ in pairs:
        if not equals:
            raise md.ConfigError(f"--spark-setting {name}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def at_least_one(arguments: argparse.Namespace, *names: str) -> None:
    for name in (*names, "rounds", "parallelism"):
        if getattr(arguments, name) < 1:
            raise md.ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least 1")


def options(arguments: argparse.Namespace, *names: str) -> Json:
    """The chosen options, for the report."""
    return {name: getattr(arguments, name) for name in (*names, "parallelism", "master", "memory", "seed")}


@contextlib.contextmanager
def work_folder(chosen: str | None) -> Iterator[Path]:
    """A fresh folder for input and state: a new one inside the chosen one, which stays, or a temporary one, which does not."""
    if chosen is not None:
        Path(chosen).mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="bench-", dir=chosen))
        return
    folder = Path(tempfile.mkdtemp(prefix="meander-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_rounds(
    arguments: argparse.Namespace, systems: Sequence[str], source: Input, folder: Path, measure: Measure
) -> dict[str, list[Json]]:
    """Each system's numbers, round by round."""
    settings = tried_settings(arguments)
    results: dict[str, list[Json]] = {system: [] for system in systems}
    for number in range(arguments.rounds):
        order = list(systems) if number % 2 == 0 else list(reversed(systems))
        for system in order:
            title = f"round {number + 1} of {arguments.rounds}, {system}"
            request = Request(
                system,
                source,
                str(folder / f"{number}-{system}"),
                arguments.master,
                arguments.parallelism,
                arguments.memory,
                settings if system in PEERS else {},
            )
            results[system].append(measure(system, measure_one(request, arguments.timeout, title)))
    return results


def measure_one(request: Request, timeout: float, title: str) -> Json:
    """One run in a process of its own, with progress. Its state is removed: the next run gets a disk as empty as this one."""
    shown = f"{title}: "
    say(shown, end="")
    live = sys.stderr.isatty()

    def progress(epoch: int | str) -> None:
        if live:
            say(f"\r{shown}epoch {epoch} of {request.input.epochs} ", end="")

    answer = run_isolated(request, timeout, progress)
    say(f"\r{shown}done, verified: {request.input.events:,} events, each counted once" if live else "done, verified")
    for name in ("store", "checkpoint"):
        shutil.rmtree(Path(request.folder) / name, ignore_errors=True)
    return answer


def peer_configuration(arguments: argparse.Namespace, peers: Sequence[str]) -> Json:
    """The settings of the peers, for the report."""
    tried = tried_settings(arguments)
    return {peer: {**peer_settings(peer, arguments.parallelism, arguments.memory), **tried} for peer in peers}
