"""The ZooKeeper for elections: a given one, or a server of the supervisor's own.

The supervisor's own server is for trials and for single machines. If it dies it is started again,
on the same port and with its data, so that replicas find it again. If the supervisor is killed the
server goes on, as the replicas do, and the next supervisor of the store takes it over. If the
supervisor is stopped, so is the server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from meander.errors import ConfigError
from meander.processes import ProcessId
from meander.state.signs import parse

if TYPE_CHECKING:
    from meander.replicate.zookeeper import EmbeddedZooKeeper

_LOOK_EVERY = 0.25
_AGAIN_AFTER = 2.0
_LOG = logging.getLogger("meander")


def nothing_to_close() -> None:
    """Does nothing, where there is nothing to close."""


def find_zookeeper(replication: str, given: str | None, logs: Path) -> tuple[str | None, Callable[[], None]]:
    """The address, and a function that closes the server in the end."""
    if given is not None or replication != "leader":
        return given, nothing_to_close
    server = OwnServer(logs)
    return server.address, server.close


class OwnServer:
    """The supervisor's own, started or taken up, and watched in a thread."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._record = logs, logs / "zookeeper.json"
        self._server: EmbeddedZooKeeper | None = None
        """Its process, where it is a child of ours."""
        there = (parse(self._record.read_bytes()) if self._record.exists() else None) or {}
        last = ProcessId.from_json(there)
        if last is not None and last.is_running and _answers(str(there.get("address"))):
            self.address, self._process = str(there["address"]), last
        else:
            self.address, self._process = self._start()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="meander-zookeeper", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        self._over.set()
        self._watcher.join()  # it may be about to start one
        self._record.unlink(missing_ok=True)
        self._end()

    def _start(self, port: int | None = None) -> tuple[str, ProcessId]:
        from meander.replicate.zookeeper import EmbeddedZooKeeper  # its jar is one of PySpark's

        self._server = server = EmbeddedZooKeeper(self._logs / "zookeeper", port=port)
        staged = self._record.with_suffix(".new")
        process = ProcessId.of(server.pid)
        staged.write_text(json.dumps({**process.to_json(), "address": server.address}))
        os.replace(staged, self._record)
        return server.address, process

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_EVERY):
            if self._process.is_running:
                continue
            self._end()
            _LOG.warning(f"ZooKeeper at {self.address} has died: it is started again; until then there is no leader")
            try:
                _, self._process = self._start(int(self.address.rpartition(":")[2]))
            except ConfigError as error:
                _LOG.warning(f"{error}; it is tried again in {_AGAIN_AFTER:g} s")
                self._over.wait(_AGAIN_AFTER)

    def _end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        elif self._process.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except (OSError, ValueError):
        return False
