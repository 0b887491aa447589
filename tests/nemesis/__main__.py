"""``python -m tests.nemesis --minutes 20 --seed 7``: attack a replicated flow on real processes, and check what is left.

Exit status 0 where nothing was found, 1 where something was, 2 where the run itself failed.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

from tests.nemesis import report
from tests.nemesis.changes import Changes
from tests.nemesis.checker import Verdict, check_dead_letters, check_left_behind, check_output, check_stalls, check_state, unnamed_objects
from tests.nemesis.cluster import REPLICAS, Cluster
from tests.nemesis.faults import Faults
from tests.nemesis.feeder import Feeder
from tests.nemesis.hosts import Hosts, Loopback, Namespaces
from tests.nemesis.ledger import Ledger, clean_leftovers, marked
from tests.nemesis.logs import ends, mistakes
from tests.nemesis.oracle import expected
from tests.nemesis.processes import descriptors, shown, targets
from tests.nemesis.watcher import Watcher

_START = 240.0
_SETTLE = 240.0
_MOST_DESCRIPTORS = 2000


class Run:
    """One run, from an empty folder to a report."""

    def __init__(self, arguments: argparse.Namespace, ledger: Ledger) -> None:
        self.arguments, self.ledger, self.identity = arguments, ledger, ledger.identity
        self.folder = Path(arguments.folder or tempfile.mkdtemp(prefix="meander-nemesis-")).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.verdict = Verdict()
        self.mode = arguments.mode or ("leader" if arguments.seed % 2 else "leaderless")
        self.network = "loopback" if arguments.loopback else Namespaces.unavailable() or "namespaces"
        hosts: Hosts = Namespaces(self.ledger, self.identity) if self.network == "namespaces" else Loopback()
        self.cluster = Cluster(self.folder, hosts, self.ledger, self.mode, arguments.seed, arguments.minutes, not arguments.loopback)
        self.feeder = Feeder(self.folder / "in", arguments.seed, arguments.rate)
        self.watcher = Watcher((self.folder / "out").resolve())
        self.faults = Faults(self.cluster, self.identity, arguments.seed, arguments.only)
        self.changes = Changes(self.cluster, arguments.seed)
        self.most: defaultdict[str, int] = defaultdict(int)
        self.reasons: Counter[str] = Counter()
        self.over = threading.Event()
        self._log = (self.folder / "nemesis.log").open("a")
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f}  {text}"
        print(line, file=self._log, flush=True)
        if self.arguments.verbose:
            print(line, flush=True)

    def go(self) -> bool:
        self.say(f"folder {self.folder}, {self.mode}, {self.network}")
        self.watcher.start()
        self.cluster.start()
        self.feeder.begin()
        self._until(lambda: self.watcher.epoch >= 1, _START, "the flow does not start")
        self.feeder.start()
        self._until(
            lambda: self.watcher.epoch >= 3 and min(self.watcher.rows[name] for name in ("parts", "counts")) > 0,
            _START,
            "the flow does not go on",
        )
        self._until(lambda: self.watcher.rows["windows"] > 0, _START, "no window closes")
        self.feeder.late_allowed.set()
        self.say(f"the flow is at epoch {self.watcher.epoch}")
        changer = threading.Thread(target=self._change, name="nemesis-changes", daemon=True)
        changer.start()
        self._storm()
        self.over.set()
        storm_end = time.monotonic()
        self.faults.heal()
        changer.join(150.0)
        self._start_what_is_missing()
        self.say("healed")
        self.feeder.close()
        self._settle(storm_end)
        self._start_once_more()
        for slow in self.cluster.stop():
            self.verdict.findings.append(f"{slow} did not end within a minute of being told")
        self.say("stopped")
        time.sleep(3.0)
        left = [shown(pid) for pid in marked(self.identity)]
        self.watcher.finish()
        self.verdict.findings += self.watcher.wrong + self.changes.wrong
        check_output(self.verdict, self.folder / "out", self.folder / "calls.jsonl", self.feeder)
        check_state(self.verdict, self.cluster.store_folder, self.feeder)
        check_stalls(self.verdict, self.watcher.epochs, self.faults.done, max([storm_end, *(at for at, _ in self.watcher.epochs[-1:])]))
        self.verdict.findings += mistakes(self.folder)
        check_dead_letters(self.verdict, self.folder / "dead")
        self.reasons, wrong = ends(self.cluster.daemons["supervisor"].log)
        self.verdict.findings += wrong
        check_left_behind(self.verdict, (self.folder / "out").resolve(), self.cluster.store_folder, left)
        self.verdict.findings += [f"{role} had {most} files open" for role, most in self.most.items() if most > _MOST_DESCRIPTORS]
        return not self.verdict.findings

    def finish(self) -> str:
        arguments = {
            "seed": self.arguments.seed,
            "mode": self.mode,
            "network": self.network,
            "minutes": self.arguments.minutes,
            "folder": self.folder,
        }
        more = {
            "replicas ended": dict(self.reasons),
            "most open files": dict(self.most),
            "supervisor starts": self.cluster.daemons["supervisor"].starts,
        }
        made = report.make(
            arguments, time.monotonic() - self._began, self.faults, self.changes, self.feeder, self.watcher, self.verdict, more
        )
        return report.write(made, self.folder)

    def _storm(self) -> None:
        chance = random.Random(f"storm {self.arguments.seed}")
        end, next_fault, next_look = time.monotonic() + 60 * self.arguments.minutes, 0.0, 0.0
        due: dict[str, float] = {}
        while (now := time.monotonic()) < end:
            self.faults.tend()
            if now >= next_fault:
                next_fault = now + chance.uniform(0.4, 1.6) * self.arguments.every
                done = self.faults.strike()
                self.say(f"epoch {self.watcher.epoch}: " + (f"{done.kind}: {done.what}, {done.seconds:.1f} s" if done else "no target"))
            for name in self.cluster.stopped():
                if due.setdefault(name, now + chance.uniform(1.0, 6.0)) <= now:
                    self.cluster.daemons[name].start(self.cluster.hosts)
                    self.say(f"{name} is started again")
                    del due[name]
            if now >= next_look:
                next_look = now + 10.0
                self._count_descriptors()
            time.sleep(0.05)

    def _change(self) -> None:
        chance = random.Random(f"change times {self.arguments.seed}")
        while not self.over.wait(chance.uniform(0.5, 1.5) * self.arguments.change_every):
            self.say(self.changes.change())

    def _settle(self, since: float) -> None:
        """Until every row is visible, or that takes too long."""
        wanted = {name: rows.total() for name, rows in expected(self.feeder.written("events"), self.feeder.written("payments")).items()}
        wanted = {name: number for name, number in wanted.items() if name not in ("counts", "calls")}
        while time.monotonic() < since + _SETTLE:
            if all(self.watcher.rows[name] >= number for name, number in wanted.items()):
                break
            self._start_what_is_missing()
            time.sleep(0.5)
        else:
            there = {name: f"{self.watcher.rows[name]} of {number}" for name, number in wanted.items()}
            self.verdict.findings.append(f"not all output is visible {_SETTLE:.0f} s after the last fault: {there}")
        self.say(f"settled at epoch {self.watcher.epoch} after {time.monotonic() - since:.0f} s")
        time.sleep(3.0)

    def _start_once_more(self) -> None:
        """All replicas anew: a start removes what the dead have left in the store."""
        supervisor = self.cluster.daemons["supervisor"]
        if not supervisor.stop(patience=60.0):
            self.verdict.findings.append("the supervisor did not end within a minute of being told")

        def at_work() -> int:  # one that a supervisor had lost sight of runs on, and is adopted
            text = supervisor.log.read_text()
            return text.count("is at work") + text.count("): adopted")

        before = at_work()
        supervisor.start(self.cluster.hosts)
        deadline = time.monotonic() + _START
        while at_work() < before + len(REPLICAS):
            if time.monotonic() > deadline:
                self.verdict.findings.append(f"replicas that were stopped are not at work again after {_START:.0f} s")
                return
            time.sleep(0.2)
        left = -1
        while time.monotonic() < deadline and left != (left := len(unnamed_objects(self.cluster.store_folder))):
            time.sleep(8.0)
        self.say("started once more")

    def _start_what_is_missing(self) -> None:
        for name in self.cluster.stopped():
            self.cluster.daemons[name].start(self.cluster.hosts)
            self.say(f"{name} is started again")

    def _until(self, holds: object, seconds: float, else_say: str) -> None:
        deadline = time.monotonic() + seconds
        while not holds():  # type: ignore[operator]
            if time.monotonic() > deadline or not self.cluster.daemons["supervisor"].running:
                raise TimeoutError(f"{else_say}; see {self.folder}/logs and {self.folder}/meander-logs")
            time.sleep(0.2)

    def _count_descriptors(self) -> None:
        for target in targets(self.identity, self.cluster.hosts):
            self.most[target.role] = max(self.most[target.role], descriptors(target.pid) or 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.nemesis", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults go on (default: 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=("leaderless", "leader"), help="default: by the seed, odd ones with a leader")
    parser.add_argument("--rate", type=int, default=800, help="rows per second (default: 800)")
    parser.add_argument("--every", type=float, default=6.0, help="seconds between two faults, on average (default: 6)")
    parser.add_argument("--change-every", type=float, default=12.0, help="seconds between two changes of the flow (default: 12)")
    parser.add_argument("--only", help="only faults whose names begin so, separated by commas: kill,pause,link,store,disk,clock")
    parser.add_argument("--loopback", action="store_true", help="no namespaces, no mounts: fewer faults")
    parser.add_argument("--folder", help="where everything goes (default: a new folder among the temporary ones)")
    parser.add_argument("--verbose", action="store_true", help="say what happens")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(2))
    for identity in clean_leftovers():
        print(f"cleaned up what run {identity} had left behind")
    ledger = Ledger(f"{random.SystemRandom().randrange(16**6):06x}")
    run, status = None, 2
    try:
        run = Run(arguments, ledger)
        status = 0 if run.go() else 1
    except Exception as error:
        traceback.print_exc()
        if run is not None:
            run.verdict.findings.append(f"the run failed: {type(error).__name__}: {error}")
    finally:
        try:
            if run is not None:
                print(run.finish(), end="", flush=True)
                print(f"folder: {run.folder}")
                keep_output(run)
        finally:
            ledger.clean()
    return status


def keep_output(run: Run) -> None:
    """The output is on a disk that goes with the run: where something was found it is kept."""
    import shutil

    if run.verdict.findings and "output" in run.cluster.disks:
        shutil.copytree(run.folder / "output" / "out", run.folder / "kept-out", dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
