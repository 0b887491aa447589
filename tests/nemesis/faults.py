"""The faults, drawn by a seed: what happens, to whom, and for how long. The schedule is the seed's; what a fault meets is the machine's.

A fault that lasts is undone when its time is over, and all are undone by ``heal``. ``done`` is the history for the report and for the
checker, which asks whether a stall is explained.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from tests.nemesis.cluster import REPLICAS, Cluster
from tests.nemesis.hosts import Namespaces
from tests.nemesis.processes import Target, targets

Undo = Callable[[], None]
_STORE = {
    "late": {"late": 0.5},
    "refused": {"refused": 0.4},
    "unanswered": {"unanswered": 0.3},
    "failed_after": {"failed_after": 0.3},
    "twice": {"twice": 0.5},
    "hang": {"hang": 0.05},
    "denied": {"denied": 0.3},
    "mixed": {"late": 0.1, "refused": 0.1, "unanswered": 0.1, "failed_after": 0.1, "twice": 0.1},
    "away": {"refused": 1.0},
}


@dataclass
class Done:
    """One fault that was done."""

    kind: str
    what: str
    began: float
    seconds: float
    """For how long it lasted; 0 for a moment's."""


class Faults:
    """All faults that this machine allows."""

    def __init__(self, cluster: Cluster, identity: str, seed: int, only: str | None = None) -> None:
        self._cluster, self._identity = cluster, identity
        self._chance = random.Random(f"faults {seed}")
        self.done: list[Done] = []
        self._undo: list[tuple[float, int, Undo]] = []
        self._number = count()
        self.missing: list[str] = []
        self._kinds = self._available()
        if only is not None:
            self._kinds = {kind: weight for kind, weight in self._kinds.items() if any(kind.startswith(one) for one in only.split(","))}

    @property
    def kinds(self) -> list[str]:
        return sorted(self._kinds)

    def strike(self) -> Done | None:
        """The next fault by the seed; None where its target is not there just now."""
        kind = self._chance.choices(list(self._kinds), list(self._kinds.values()))[0]
        group, _, detail = kind.partition(" ")
        seconds = 0.0 if group == "kill" else self._chance.uniform(2.0, 10.0)
        made = {
            "kill": self._kill,
            "pause": self._pause,
            "link": self._link,
            "store": self._store,
            "disk": self._disk,
            "clock": self._clock,
        }
        began = time.monotonic()
        result = made[group](detail)
        if result is None:
            return None
        what, undo = result
        if undo is not None:
            heapq.heappush(self._undo, (began + seconds, next(self._number), undo))
        self.done.append(Done(kind, what, began, seconds))
        return self.done[-1]

    def tend(self) -> None:
        """Undo what is over."""
        while self._undo and self._undo[0][0] <= time.monotonic():
            heapq.heappop(self._undo)[2]()

    def heal(self) -> None:
        """Undo everything."""
        while self._undo:
            heapq.heappop(self._undo)[2]()
        if isinstance(self._cluster.hosts, Namespaces):
            self._cluster.hosts.heal()
        for target in targets(self._identity, self._cluster.hosts):
            target.signal(signal.SIGCONT)
        self._set_store({})

    # -- kinds ------------------------------------------------------------------------------------------------------

    def _available(self) -> dict[str, float]:
        kinds = {
            "kill driver": 2.0,
            "kill driver_jvm": 1.0,
            "kill executor": 3.0,
            "kill python_worker": 4.0,
            "kill steward": 2.0,
            "kill background_steward": 1.0,
            "kill supervisor": 1.5,
            "pause driver": 2.0,
            "pause session": 2.0,
            "pause driver_jvm": 1.0,
            "pause executor": 3.0,
            "pause python_worker": 3.0,
            "pause steward": 1.5,
            "pause supervisor": 1.0,
            "kill worker": 1.0,
            "pause worker": 1.0,
            "pause master": 0.5,
            "clock": 3.0,
            **{f"store {name}": 0.8 for name in _STORE},
        }
        if self._cluster.mode == "leader":
            kinds |= {"kill zookeeper": 0.7, "pause zookeeper": 1.0}
        if self._cluster.hosts.links:
            kinds |= {"link cut": 4.0, "link cut one-way": 3.0, "link loss": 3.0, "link slow": 2.0}
        else:
            self.missing.append("links: there are no network namespaces here")
        if self._cluster.disks:
            kinds |= {f"disk {name}": 1.0 for name in self._cluster.disks}
        else:
            self.missing.append("full disks: nothing can be mounted here")
        return kinds

    def _kill(self, role: str) -> tuple[str, Undo | None] | None:
        target = self._choose(role)
        if target is None:
            return None
        whole = role == "driver" and self._chance.random() < 0.5
        if not target.signal(signal.SIGKILL, whole):
            return None
        return f"{_name(target)}{' and all of its session' if whole else ''}", None

    def _pause(self, role: str) -> tuple[str, Undo] | None:
        whole = role == "session"
        target = self._choose("driver" if whole else role)
        if target is None or not target.signal(signal.SIGSTOP, whole):
            return None
        return f"{_name(target)}{' and all of its session' if whole else ''}", lambda: _resume(target, whole)

    def _link(self, detail: str) -> tuple[str, Undo]:
        hosts = self._cluster.hosts
        assert isinstance(hosts, Namespaces)
        one, other = self._ends()
        if detail == "slow":
            rate = self._chance.choice((64, 256, 1024))
            hosts.slow(one, rate)
            return f"what {one} sends, {rate} kbit/s", lambda: hosts.quicken(one)
        if detail == "loss":
            share = self._chance.choice((0.05, 0.2, 0.5))
            ways = [(one, other), (other, one)]
            for source, target in ways:
                hosts.lose(source, target, share)
            return f"between {one} and {other}, {share:.0%} of the packets", lambda: [hosts.restore(*way) for way in ways] and None
        ways = [(one, other)] if detail.endswith("one-way") else [(one, other), (other, one)]
        for source, target in ways:
            hosts.cut(source, target)
        said = f"from {one} to {other}" if len(ways) == 1 else f"between {one} and {other}"
        return said, lambda: [hosts.restore(*way) for way in ways] and None

    def _ends(self) -> tuple[str, str]:
        """Two hosts; mostly such as talk to each other."""
        names = ["master", "worker1", "worker2", *REPLICAS, "supervisor", "s3"]
        pairs = [(one, other) for one in REPLICAS for other in ("master", "worker1", "worker2", "s3", "s3")]
        pairs += [
            ("worker1", "s3"),
            ("worker2", "s3"),
            ("worker1", "worker2"),
            ("supervisor", "s3"),
            ("master", "worker1"),
            ("master", "worker2"),
        ]
        if self._cluster.mode == "leader":
            names.append("zookeeper")
            pairs += [(one, "zookeeper") for one in REPLICAS] * 2
        chosen = list(self._chance.choice(pairs) if self._chance.random() < 0.85 else self._chance.sample(names, 2))
        self._chance.shuffle(chosen)
        return chosen[0], chosen[1]

    def _store(self, detail: str) -> tuple[str, Undo]:
        self._set_store(_STORE[detail])
        return f"the store: {detail}", lambda: self._set_store({})

    def _disk(self, name: str) -> tuple[str, Undo] | None:
        ballast = self._cluster.disks[name] / ".ballast"
        free = os.statvfs(ballast.parent)
        with contextlib.suppress(OSError), ballast.open("wb") as out:
            os.posix_fallocate(out.fileno(), 0, max(1, free.f_bavail * free.f_frsize))
        with contextlib.suppress(OSError), ballast.open("ab") as out:  # what others have freed meanwhile
            while True:
                out.write(b"\0" * 4096)
                out.flush()
        return f"{name} is full", lambda: ballast.unlink(missing_ok=True)

    def _clock(self, detail: str) -> tuple[str, Undo | None]:
        host = self._chance.choice(REPLICAS)
        jump = self._chance.choice((-3600, -300, -20, 20, 300, 3600))
        self._cluster.set_clock(host, jump)
        return f"the clock of {host} jumps by {jump:+d} s", lambda: self._cluster.set_clock(host, 0)

    def _choose(self, role: str) -> Target | None:
        found = sorted(
            (one for one in targets(self._identity, self._cluster.hosts) if one.role == role), key=lambda one: (one.owner, one.pid)
        )
        drawn = self._chance.random()
        return found[int(drawn * len(found))] if found else None

    def _set_store(self, wanted: dict[str, float]) -> None:
        staged = self._cluster.store_faults.with_suffix(".new")
        staged.write_text(json.dumps(wanted))
        os.replace(staged, self._cluster.store_faults)


def _resume(target: Target, whole: bool) -> None:
    target.signal(signal.SIGCONT, whole)


def _name(target: Target) -> str:
    return f"{target.role}{' ' + target.owner if target.owner else ''} ({target.pid})"
