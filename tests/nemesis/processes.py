"""Which processes of a run play which part: the targets of kills and pauses."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.nemesis.hosts import Hosts
from tests.nemesis.ledger import marked, start_time

_DAEMONS = {
    "org.apache.spark.deploy.master.Master": "master",
    "org.apache.spark.deploy.worker.Worker": "worker",
    "org.apache.zookeeper.server.ZooKeeperServerMain": "zookeeper",
}


@dataclass(frozen=True)
class Target:
    """A process and its part."""

    role: str
    owner: str
    """The replica that it belongs to, where that can be told."""
    pid: int
    began: str

    def signal(self, number: int, whole_session: bool = False) -> bool:
        """Whether it was still there to be told."""
        if start_time(self.pid) != self.began:
            return False
        members = _session(self.pid) if whole_session else [self.pid]
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return True


def targets(identity: str, hosts: Hosts) -> list[Target]:
    """All live processes of a run that have a part."""
    replicas = {hosts.address(name): name for name in ("a", "b")}
    found = []
    for pid in marked(identity):
        began = start_time(pid)
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            role, owner = _part(words, replicas)
            if role and began:
                found.append(Target(role, owner, pid, began))
    return found


def descriptors(pid: int) -> int | None:
    """How many files a process has open."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def shown(pid: int) -> str:
    """A process's command line, shortened."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[-300:]
    except OSError:
        return "gone"


def _part(words: list[str], replicas: dict[str, str]) -> tuple[str, str]:
    text = " ".join(words)
    if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in text:
        return "executor", next((name for address, name in replicas.items() if f"@{address}:" in text), "")
    if "org.apache.spark.deploy.SparkSubmit" in text:
        return "driver_jvm", ""
    if "meander.cli.main" in words and "--replica" in words:
        return "driver", words[words.index("--replica") + 1]
    for name, role in _DAEMONS.items():
        if name in words:
            return role, ""
    if "supervise.py" in text:
        return "supervisor", ""
    if "meander.cache.steward" in words:
        return ("background_steward" if "background" in words else "steward"), ""
    if "pyspark.daemon" in words:
        return "python_worker", ""
    return "", ""


def _session(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return sorted(found, reverse=True)
