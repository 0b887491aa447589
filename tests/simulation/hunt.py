"""Run many schedules of a simulation and tell what was found, by kind of failure.

    python -m tests.simulation.hunt --seeds 0:5000 --jobs 2 --json
    python -m tests.simulation.hunt --seeds 273:274                    # one seed again, with all that happened in it
    python -m tests.simulation.hunt --seeds 273:274 --without faults   # is it there without them?

Of every kind the first seed is told, and how many schedules had been run until then. ``--simulation protocol`` is the one of the epoch
protocol alone (``tests/simulation/schedule.py``), ``whole`` the one of whole flows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from typing import Any

Found = dict[str, dict[str, Any]]


def hunt(
    simulation: str, seeds: range, stop_at_first: bool = False, known: tuple[str, ...] = (), without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Run the schedules of these seeds, here: what was found."""
    found: Found = {}
    began, ran = time.monotonic(), 0
    for seed in seeds:
        ran += 1
        try:
            _run(simulation, seed, without)
        except Exception as error:
            kind = getattr(error, "kind", None) or f"{type(error).__name__} in the simulation"
            one = found.setdefault(kind, {"seed": seed, "after": ran, "times": 0, "told": str(error)[:600]})
            one["times"] += 1
            if len(seeds) == 1:
                traceback.print_exception(error)
            if stop_at_first and not any(text in f"{kind} {error}" for text in known):
                break
    return {"schedules": ran, "seconds": round(time.monotonic() - began, 1), "found": found}


def spread(simulation: str, seeds: range, jobs: int) -> dict[str, Any]:
    """The same in several processes, each with every nth seed; ``after`` counts the schedules of all of them."""
    command = [sys.executable, "-m", "tests.simulation.hunt", "--simulation", simulation, "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "POLARS_MAX_THREADS": "1"}
    began, found, ran = time.monotonic(), {}, 0
    parts = [f"{seeds.start + job}:{seeds.stop}:{jobs}" for job in range(jobs)]
    running = [subprocess.Popen([*command, "--seeds", part], stdout=subprocess.PIPE, text=True, env=environment) for part in parts]
    for process in running:
        told = json.loads(process.communicate()[0])
        ran += told["schedules"]
        for kind, one in told["found"].items():
            one["after"] *= jobs
            known = found.setdefault(kind, {**one, "times": 0})
            known.update({**(one if one["seed"] < known["seed"] else known), "times": known["times"] + one["times"]})
    return {"schedules": ran, "seconds": round(time.monotonic() - began, 1), "found": found}


def describe(told: dict[str, Any]) -> str:
    failed = sum(one["times"] for one in told["found"].values())
    lines = [f"{told['schedules']} schedules in {told['seconds']} s, {failed} failed"]
    for kind, one in sorted(told["found"].items(), key=lambda item: -item[1]["times"]):
        lines.append(f"{one['times']:5} × {kind}: first seed {one['seed']}, after {one['after']}: {one['told'][:240]}")
    return "\n".join(lines)


def _run(simulation: str, seed: int, without: frozenset[str]) -> None:
    if simulation == "whole":
        from tests.simulation.whole.schedule import run_schedule

        run_schedule(seed, without)
    else:
        from tests.simulation.schedule import run_schedule as run_protocol

        run_protocol(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulation", choices=("whole", "protocol"), default="whole")
    parser.add_argument("--seeds", default="0:1000", help="first:end, or first:end:step")
    parser.add_argument("--stop-at-first", action="store_true", help="stop at the first failure")
    parser.add_argument("--known", action="append", default=[], help="with --stop-at-first: go on after one that has this text in it")
    parser.add_argument("--without", default="", help="what to leave out: change, flush, kill, rescale, read, faults, replicas")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    seeds = range(*(int(part) for part in asked.seeds.split(":")))
    if asked.jobs > 1:
        told = spread(asked.simulation, seeds, asked.jobs)
    else:
        told = hunt(asked.simulation, seeds, asked.stop_at_first, tuple(asked.known), frozenset(filter(None, asked.without.split(","))))
    print(json.dumps(told, indent=1) if asked.json else describe(told))
    sys.exit(1 if told["found"] else 0)


if __name__ == "__main__":
    main()
