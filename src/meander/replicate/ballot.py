"""Where replicas elect their leader: the ZooKeeper that is named, or one of the supervisor's own.

Its own one is for trying things out, and where one machine is all there is. It goes on if the supervisor is killed, as the replicas do,
and the next supervisor of the store takes it up. It ends with the supervisor that is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from meander.replicate.process import is_running
from meander.replicate.signs import parse


def nothing_to_close() -> None:
    """What is to be done in the end where nothing is."""


def find_zookeeper(replication: str, given: str | None, logs: Path) -> tuple[str | None, Callable[[], None]]:
    """Its address, and what is to be done with it in the end."""
    if given is not None or replication != "leader":
        return given, nothing_to_close
    record = logs / "zookeeper.json"
    there = parse(record.read_bytes()) if record.exists() else None
    if there is None or not (is_running(int(there["process"])) and _answers(str(there["address"]))):
        from meander.engine.zookeeper import EmbeddedZooKeeper  # its jar is one of PySpark's

        server = EmbeddedZooKeeper(logs / "zookeeper")
        there = {"process": server.pid, "address": server.address}
        record.write_text(json.dumps(there))
    address, process = str(there["address"]), int(there["process"])

    def close() -> None:
        record.unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, 0)

    return address, close


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except OSError:
        return False
