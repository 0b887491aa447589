"""Failover: the gap in the output when a process dies, beside Spark's own restart from its
checkpoint.

A steady input of small files is counted per key. Systems: ``leaderless`` and ``leader`` (two
replicas of Meander), ``passive`` (one process, restarted at once) and ``spark`` (Structured
Streaming, restarted likewise). Each is disturbed in several ways, one after the other: its driver
is killed with all it has started (``driver``; the leader's, where there is one), its executor
(``executor``), or all of a driver's processes are stopped for ten seconds and go on (``pause``).
Dead processes are started again at once.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

import meander as md
from meander.bench.harness.latency import Change, Published, describe_change, longest_gap
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.processes import anonymous_bytes, end_session
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import add_common_arguments, say, work_folder
from meander.bench.harness.statistics import Json
from meander.bench.load.steady import Feed, Sight, batch_name, drained, meander_names, timeline
from meander.processes import session_members, words_of
from meander.replicate.priority import LowPriority
from meander.state.signs import parse

SYSTEMS = ("leaderless", "leader", "passive", "spark")
FAULTS = ("driver", "executor", "pause")
_SIGNS = 5.0
"""Seconds within which a leader can be seen."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="separated by commas (default: %(default)s)")
    parser.add_argument("--faults", default=",".join(FAULTS), help="separated by commas (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1000.0, help="events per second (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--trigger", type=float, default=0.5, help="seconds between two epochs or batches (default: %(default)s)")
    parser.add_argument("--warmup", type=float, default=15.0, help="seconds before anything is measured (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="seconds that are measured before a fault, and after it (default: %(default)s)"
    )
    parser.add_argument("--pause", type=float, default=10.0, help="seconds that a pause lasts (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that a system may take to come back (default: %(default)s)")
    add_common_arguments(parser, rounds=1)
    parser.set_defaults(master="local-cluster[1,1,1024]", parallelism=1, memory="1g")


def run(arguments: argparse.Namespace) -> Report:
    systems = _chosen("--systems", arguments.systems, SYSTEMS)
    faults = _chosen("--faults", arguments.faults, FAULTS)
    for name in ("rate", "keys", "trigger", "seconds", "pause", "patience"):
        if not getattr(arguments, name) > 0:
            raise md.ConfigError(f"--{name} {getattr(arguments, name)}: must be above 0")
    facts = machine_facts()
    results: dict[str, Json] = {}
    with work_folder(arguments.folder) as folder:
        for system in systems:
            say(f"{system}:")
            results[system] = _measure(arguments, system, faults, folder / system)
    ratios = _ratios(results)
    names = ("rate", "keys", "trigger", "warmup", "seconds", "pause", "parallelism", "master", "memory", "seed")
    config = {**{name: getattr(arguments, name) for name in names}, "systems": systems, "faults": faults, "machine": facts}
    return Report("failover", config, arguments.rounds, results, ratios, [_table(results), _costs(results)], _notes(arguments))


def _chosen(option: str, text: str, known: Sequence[str]) -> list[str]:
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise md.ConfigError(f"{option} {name}: there is no such thing; there are {', '.join(known)}")
    if not chosen:
        raise md.ConfigError(f"{option}: give some of {', '.join(known)}")
    return chosen


class Kept:
    """A process that is started again whenever it has ended, until ``let_go`` is called."""

    def __init__(self, asked: Json) -> None:
        self.asked = asked
        self.name: str = asked["name"]
        self._priority: LowPriority | None = None
        self._start()

    def _start(self) -> None:
        self.up.unlink(missing_ok=True)
        self._up_since: float | None = None
        words = [sys.executable, "-m", "meander.bench.failover.child", json.dumps(self.asked)]
        with open(Path(self.asked["folder"]) / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    @property
    def up(self) -> Path:
        return Path(self.asked["folder"]) / f"{self.name}.up"

    @property
    def pid(self) -> int:
        return self._process.pid

    def look(self, beside_others: bool) -> None:
        """Start it again if it has ended. Its remaining children are ended first: they would hold
        on to ports and files.

        A process that starts beside working replicas has a lower priority, as under Meander's own
        supervisor.
        """
        now = time.monotonic()
        if self._process.poll() is not None:
            end_session(self.pid)
            self._start()
            self._priority = LowPriority.begin(self.pid, now) if beside_others else None
        if self._up_since is None and self.up.exists():
            self._up_since = now
        if self._priority is not None and self._priority.is_over(now, self._up_since, beside_others):
            self._priority = None

    def last_words(self) -> str:
        return (Path(self.asked["folder"]) / f"{self.name}.log").read_text(errors="replace")[-1500:]

    def members(self) -> list[int]:
        return session_members(self.pid)

    def executors(self) -> list[int]:
        return [pid for pid in self.members() if any("CoarseGrainedExecutorBackend" in word for word in words_of(pid))]

    def signal(self, number: int) -> None:
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def let_go(self) -> None:
        end_session(self.pid)
        self._process.wait()


def tend(kept: Sequence[Kept]) -> None:
    """Look at all replicas of one flow."""
    for one in kept:
        one.look(beside_others=any(other is not one and other.up.exists() for other in kept))


class _System:
    """One system at work: its processes, its input and its output."""

    def __init__(self, arguments: argparse.Namespace, name: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.name, self.folder, self._patience = name, folder, arguments.patience
        self.out = folder / "out"
        self._server: Any = None
        self.feed = Feed(folder / "in", arguments.rate, arguments.keys, arguments.seed)
        names: Callable[[int], list[str]] = meander_names(arguments.parallelism) if name != "spark" else lambda number: [batch_name(number)]
        self.sight = Sight(self.out, names, first=0 if name == "spark" else 1)
        replicas = ("a", "b") if name in ("leaderless", "leader") else ("a",)
        common = {
            "system": name,
            "input": str(self.feed.folder),
            "out": str(self.out),
            "folder": str(folder),
            "master": arguments.master,
            "memory": arguments.memory,
            "parallelism": arguments.parallelism,
            "trigger": f"{round(arguments.trigger * 1000)} milliseconds" if name == "spark" else arguments.trigger,
        }
        self.kept: list[Kept] = []
        for replica in replicas:
            self.kept.append(Kept({**common, "name": replica, "options": self._options(replica)}))

    def _options(self, replica: str) -> Json:
        if self.name == "leaderless":
            return {"replica": replica}
        if self.name == "leader":
            if self._server is None:
                from meander.replicate.zookeeper import EmbeddedZooKeeper

                self._server = EmbeddedZooKeeper(self.folder / "zookeeper")
            return {"replica": replica, "replication": "leader", "zookeeper": self._server.address, "leader_timeout": 2.0}
        return {"takeover": True} if self.name == "passive" else {}

    def start(self) -> None:
        self.sight.start()
        self.feed.start()
        self.wait_until(lambda: all(one.up.exists() for one in self.kept) and self.sight.last() > 0, "does not start")

    def rest(self, seconds: float) -> None:
        """Let it run, and start again what ends."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            tend(self.kept)
            time.sleep(0.02)

    def wait_until(self, holds: Callable[[], bool], trouble: str) -> None:
        deadline = time.monotonic() + self._patience
        while not holds():
            if time.monotonic() > deadline:
                last = "\n".join(one.last_words() for one in self.kept)
                raise md.Retryable(
                    f"{self.name} {trouble} within {self._patience:g} s; allow more with --patience. Its last words:\n{last}"
                )
            self.rest(0.1)

    def wait_until_whole(self, since: float) -> None:
        self.wait_until(lambda: all(one.up.exists() for one in self.kept) and self.sight.last() > since, "does not come back")

    def victim(self) -> Kept:
        """The replica whose loss hurts most: the leader, or the one that merges and removes
        segments."""
        until = time.monotonic() + _SIGNS
        while self.name == "leader" and time.monotonic() < until:
            for one in self.kept:
                for sign in (self.folder / "store" / "replicas").glob(f"*/{one.name}"):
                    said = parse(sign.read_bytes())
                    if said is not None and said.get("leads"):
                        return one
            time.sleep(0.01)
        return self.kept[0]

    def cost(self, seconds: float) -> Json:
        """The cores and the private memory that its processes use while nothing happens."""
        before = {pid: spent for one in self.kept for pid in one.members() if (spent := _spent(pid)) is not None}
        self.rest(seconds)
        cores = sum(spent - before[pid] for pid in before if (spent := _spent(pid)) is not None) / seconds
        memory = sum(anonymous_bytes(pid) or 0 for one in self.kept for pid in one.members())
        return {"cores": round(cores, 3), "memory_bytes": memory, "processes": sum(len(one.members()) for one in self.kept)}

    def close(self) -> None:
        self.feed.stop()
        self.sight.stop()
        for one in self.kept:
            one.signal(signal.SIGCONT)
            one.let_go()
        if self._server is not None:
            self._server.close()


def _spent(pid: int) -> float | None:
    """Seconds that a process has been at work; None where it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)


def _measure(arguments: argparse.Namespace, name: str, faults: list[str], folder: Path) -> Json:
    system = _System(arguments, name, folder)
    changes: list[tuple[str, Change, tuple[float, float]]] = []
    try:
        system.start()
        system.rest(arguments.warmup)
        cost = system.cost(arguments.seconds)
        for fault in faults:
            began = time.time()
            system.rest(arguments.seconds)
            asked = time.time()
            if not _disturb(system, fault, arguments.pause):
                say(f"  {fault}: there is none with --master {arguments.master}")
                continue
            # In force again once all of it is back and output goes on.
            system.wait_until_whole(asked)
            changes.append((fault, Change(asked, time.time()), (began, asked)))
            say(f"  {fault}: whole again after {changes[-1][1].in_force - asked:.1f} s")
            system.rest(arguments.seconds)
        system.feed.stop()
        account = drained(system.sight, system.feed, system.out, arguments.patience)
        say(f"  {system.feed.events:,} events, {account['lost']} lost, {account['doubled']} doubled")
    finally:
        system.close()
    epochs = system.sight.published()
    ends = [began for _, _, (began, _) in changes[1:]] + [epochs[-1].end]
    found = {fault: describe_change(epochs, change, steady, end) for (fault, change, steady), end in zip(changes, ends, strict=True)}
    for fault, change, (_, asked) in changes:
        found[fault]["gap_at_fault"] = round(longest_gap(epochs, asked, change.over), 4)
        found[fault]["whole_again_seconds"] = round(change.in_force - asked, 3)
    return {
        "faults": found,
        "cost": cost,
        "events": system.feed.events,
        **account,
        "timeline": timeline(epochs),
        "marks": [[round(change.asked - epochs[0].end, 3), fault] for fault, change, _ in changes],
        "epoch_seconds": _usual(epochs),
    }


def _disturb(system: _System, fault: str, pause: float) -> bool:
    victim = system.victim()
    if fault == "driver":
        victim.up.unlink(missing_ok=True)
        end_session(victim.pid)
        return True
    if fault == "executor":
        for pid in victim.executors():
            os.kill(pid, signal.SIGKILL)
            return True
        return False
    victim.signal(signal.SIGSTOP)
    system.rest(pause)
    victim.signal(signal.SIGCONT)
    return True


def _usual(epochs: Sequence[Published]) -> float:
    gaps = sorted(after.end - before.end for before, after in itertools.pairwise(epochs))
    return round(gaps[len(gaps) // 2], 4) if gaps else 0.0


def _ratios(results: dict[str, Json]) -> dict[str, float]:
    """How much longer Spark's own gap is, per fault; above 1 is better for Meander."""
    ratios = {}
    for name, numbers in results.items():
        for fault, found in numbers["faults"].items() if name != "spark" else ():
            peer = results.get("spark", {}).get("faults", {}).get(fault)
            if peer is not None and found["gap_at_fault"]:
                ratios[f"{name} {fault}"] = round(peer["gap_at_fault"] / found["gap_at_fault"], 1)
    return ratios


def _table(results: dict[str, Json]) -> Table:
    rows = [
        (
            name,
            fault,
            f"{numbers['epoch_seconds']:.2f}",
            f"{found['gap_seconds']['before']:.2f}",
            f"{found['gap_at_fault']:.2f}",
            *(f"{found['latency_seconds'][part]['p99']:.2f}" for part in ("before", "during", "after")),
            f"{found['whole_again_seconds']:.1f}",
            f"{numbers['lost']}",
            f"{numbers['doubled']}",
        )
        for name, numbers in results.items()
        for fault, found in numbers["faults"].items()
    ]
    titles = ("epoch s", "gap before s", "gap at fault s", "p99 before s", "during s", "after s", "whole again s", "lost", "doubled")
    return Table(("system", "fault", *titles), tuple(rows))


def _costs(results: dict[str, Json]) -> Table:
    rows = tuple(
        (name, f"{n['cost']['cores']:.2f}", f"{n['cost']['memory_bytes'] / 1e6:,.0f}", f"{n['cost']['processes']}")
        for name, n in results.items()
    )
    return Table(("system", "cores", "memory MB", "processes"), rows)


def _notes(arguments: argparse.Namespace) -> list[str]:
    return [
        f"{arguments.rate:g} events/s, an epoch every {arguments.trigger:g} s. A gap is the longest time between two outputs that became "
        "visible; lost and doubled are over the whole run. Ratios: Spark's gap over ours.",
    ]
