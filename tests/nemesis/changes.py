"""Rescales, migrations, evacuations and modifications of the flow while it is attacked, through the HTTP API and the shell, as users do.

None of them changes a result. One that is refused or not answered is counted; only an answer that says "internal error" is a finding.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
import sys
from collections import Counter
from typing import Any

from tests.nemesis.cluster import REPLICAS, Cluster
from tests.nemesis.logs import is_mistake

from meander.control.client import Client
from meander.errors import MeanderError

STATEFUL = ("counts", "windows", "buckets", "paid")
KINDS = (
    *("rescale", "rescale", "rescale by shell", "migrate", "evacuate"),
    *("replace", "replace by shell", "insert", "remove", "grace", "columns", "sink"),
)
SINKS = ("counts", "windows", "late", "buckets", "paid")
_OF_THE_STORE = re.compile(r"\b50\d [A-Z][A-Za-z ]*")
"""What the store's faults answer is no mistake of ours."""


class Changes:
    """Asks a replica for one change at a time."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._chance = cluster, random.Random(f"changes {seed}")
        self._inserted = 0
        self.made: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.wrong: list[str] = []

    def change(self) -> str:
        """Ask for one; what came of it."""
        replica = self._chance.choice(REPLICAS)
        kind = self._chance.choice(KINDS)
        drawn = self._chance.random()
        try:
            if not self._cluster.hosts.within(replica, lambda: listens(self._cluster.url(replica))):  # as a user would: then the other one
                replica = next(name for name in REPLICAS if name != replica)
            self._cluster.hosts.within(replica, lambda: self._ask(kind, replica, drawn))
        except (MeanderError, OSError, subprocess.SubprocessError) as error:
            self.refused[kind] += 1
            said = f"{type(error).__name__}: {error}"
            self.reasons[f"{kind}: {said[:160]}"] += 1
            ours = _OF_THE_STORE.sub("", said)
            if "nternal" in ours or is_mistake(ours):
                self.wrong.append(f"{kind} through {replica}: {said[:500]}")
            return f"{kind} through {replica}: {said[:120]}"
        self.made[kind] += 1
        return f"{kind} through {replica}: done"

    def _ask(self, kind: str, replica: str, drawn: float) -> None:
        client = Client(self._cluster.url(replica), None)
        operator = STATEFUL[int(drawn * len(STATEFUL))]
        slots = 1 + int(drawn * 997) % 4
        condition = f"v >= 0 and v < {10**9 + int(drawn * 10**6)}"
        if kind == "rescale":
            client.rescale(operator, slots, ("hybrid", "prefetch", "lazy", "eager")[int(drawn * 991) % 4])
        elif kind == "rescale by shell":
            self._shell("rescale", operator, str(slots), "--url", client.url)
        elif kind in ("migrate", "evacuate"):
            there = sorted(client.status()["executors"])
            if not there:
                raise ConnectionError("there is no executor")
            executor = there[int(drawn * 983) % len(there)]
            if kind == "migrate":
                client.migrate([operator], executor)
            else:
                client.evacuate(executor)
        elif kind == "replace":
            client.modify(_body({"change": "replace", "name": "valid", "operator": {"filter": condition}}))
        elif kind == "replace by shell":
            self._shell("replace", "valid", "--filter", condition, "--timeout", "20s", "--url", client.url)
        elif kind == "insert":
            self._inserted += 1
            client.modify(
                _body({"change": "insert", "name": f"extra{self._inserted}", "operator": {"filter": condition}, "after": "valid"})
            )
        elif kind == "remove":
            extra = next((name for name in _operators(client.status()) if name.startswith("extra")), None)
            if extra is None:
                raise ConnectionError("there is nothing to remove")
            client.modify(_body({"change": "remove", "name": extra}))
        elif kind == "sink":  # from then on its rows go to another folder, also after a restart of the unchanged file
            self._inserted += 1
            name = SINKS[int(drawn * len(SINKS))]
            place = self._cluster.folder / "out" / f"{name}.{self._inserted}"
            self._shell("replace", f"{name}_out", "--parquet", str(place), "--timeout", "20s", "--url", client.url)
        elif kind == "columns":
            self._inserted += 1
            more = {} if drawn < 0.5 else {f"most{self._inserted}": "max(v)"}
            operator_now = {"aggregate": {"n": "count()", "total": "sum(v)", **more}}
            client.modify(_body({"change": "replace", "name": "counts", "operator": operator_now}))
        else:
            grace = ("30s", "40s", "60s")[int(drawn * 977) % 3]
            client.modify(_body({"change": "replace", "name": "time", "operator": {"watermark": "ts", "grace": grace}}))

    def _shell(self, *words: str) -> None:
        command = [sys.executable, "-m", "meander.cli.main", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env=self._cluster.daemons["supervisor"].environment
        )
        if done.returncode:
            raise ConnectionError(
                (done.stderr or done.stdout).strip().splitlines()[-1] if (done.stderr or done.stdout).strip() else "no words"
            )


def listens(url: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=2.0):
            return True
    except OSError:
        return False


def _body(change: dict[str, Any]) -> dict[str, Any]:
    return {"changes": [change], "timeout": 20.0}


def _operators(status: dict[str, Any]) -> list[str]:
    return [operator["name"] for stage in status["stages"] for operator in stage["operators"]]
