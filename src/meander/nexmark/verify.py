"""A query under hard conditions: its process is killed, another one goes on and changes the slots while it runs, and then it is checked.

The killed process is a real one, with a Spark of its own, and is ended by ``kill -9`` as soon as it
has committed a few epochs, at any point of its work. Only the store and the published files remain.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meander.clock import SystemClock
from meander.errors import ConfigError, MeanderError
from meander.nexmark.checking import check, output, taken_by
from meander.nexmark.oracle import Table
from meander.nexmark.queries import FLOWS, build
from meander.nexmark.stream import sources
from meander.nexmark.workload import Workload
from meander.state.log import read_manifest
from meander.state.stores.contract import open_store

KEEP_ALL = 1_000_000
"""Epochs that are retained for q12, whose check needs the time of every one."""
_KILL_AFTER = 3
"""Epochs."""
_PATIENCE = 600.0
_CLOCK = SystemClock()


@dataclass(frozen=True)
class Trial:
    """The plan of a trial."""

    query: str
    parallelism: int
    rescaled_to: int | None
    """In the middle; None for never."""
    killed: bool
    events: int
    per_epoch: int
    seed: int
    event_rate: int | None = None

    @property
    def workload(self) -> Workload:
        return Workload() if self.event_rate is None else Workload(event_rate=self.event_rate)

    def tables(self) -> dict[str, Any]:
        """The query's sources."""
        return sources(
            FLOWS[self.query],
            events=self.events,
            partitions=self.parallelism,
            seed=self.seed,
            max_rows_per_epoch=self.per_epoch,
            workload=self.workload,
        )


@dataclass(frozen=True)
class Verdict:
    """The result of a trial."""

    trial: Trial
    killed_at: int | None
    """The last epoch that the killed process had committed."""
    rescaled_at: int | None
    """The first epoch with the new slots."""
    epochs: int
    rows: int
    difference: str | None
    """Where the result is not what the oracle says; None where it is."""
    seconds: float


def verify(trial: Trial, spark: Any, folder: Path, known: Mapping[str, Table]) -> Verdict:
    """Run a query through all of it, in an empty folder. ``known`` are the tables of the same events for the oracle."""
    began = _CLOCK.monotonic()
    store, out = folder / "state", folder / "out"
    killed_at = _run_and_kill(trial, store, out) if trial.killed else None
    tables = trial.tables()
    retained: dict[str, Any] = {"retain_epochs": KEEP_ALL} if trial.query == "q12" else {}
    flow = build(trial.query, tables, output(trial.query, out))
    rescaled_at = None
    with flow.start(store, spark=spark, parallelism=trial.parallelism, takeover=True, **retained) as run:
        if trial.rescaled_to is not None:
            for operator in run.status()["operators"]:
                rescaled_at = run.rescale(operator, trial.rescaled_to).epoch
        if not run.await_termination(_PATIENCE):
            raise MeanderError(f"{trial.query} has not come to its end within {_PATIENCE:.0f} s")
        status = run.status()
    if trial.query == "q12":
        known = {**known, "bid": taken_by(store, "bid", tables["bid"])}
    rows, difference = check(trial.query, out, known)
    words = None if difference is None else str(difference)
    if status["dead_letters"]:
        words = f"{status['dead_letters']} dead letters. {words or ''}".rstrip()
    return Verdict(trial, killed_at, rescaled_at, status["epoch"], rows, words, _CLOCK.monotonic() - began)


def _run_and_kill(trial: Trial, store: Path, out: Path) -> int:
    """Start the query in another process and kill it with everything that it has started: its last epoch."""
    words = f"nexmark run {trial.query} --events {trial.events} --events-per-epoch {trial.per_epoch} --seed {trial.seed} --json".split()
    words += ["--parallelism", str(trial.parallelism), "--store", str(store), "--out", str(out)]
    words += [] if trial.event_rate is None else ["--event-rate", str(trial.event_rate)]
    said = store.with_name("said.txt")
    with said.open("w") as lines:
        child = subprocess.Popen(
            [sys.executable, "-m", "meander.cli.main", *words], stdout=lines, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            deadline = _CLOCK.monotonic() + _PATIENCE
            while epoch_of(store) < _KILL_AFTER:
                if child.poll() is not None:
                    raise MeanderError(f"the process that was to be killed has ended by itself:\n{said.read_text()}")
                if _CLOCK.monotonic() > deadline:
                    raise MeanderError(f"the process that was to be killed does not get on:\n{said.read_text()}")
                _CLOCK.sleep(0.02)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return epoch_of(store)


def epoch_of(store: Path) -> int:
    """The last committed epoch of a store; 0 where there is none yet."""
    try:
        return read_manifest(open_store(str(store))).epoch
    except MeanderError:
        return 0


def check_trial(trial: Trial) -> None:
    """Refuse what cannot be gone through."""
    if trial.query not in FLOWS:
        raise ConfigError(f"query '{trial.query}': there is no such query; there are {', '.join(FLOWS)}")
    needed = (_KILL_AFTER + 2) * trial.per_epoch
    if trial.killed and trial.events < needed:
        raise ConfigError(
            f"--events {trial.events}: to be killed in the middle, a query needs {needed} at least, or fewer --events-per-epoch"
        )
