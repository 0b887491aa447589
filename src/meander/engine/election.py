"""Who leads, where one replica is to: an election through ZooKeeper. Spark-free.

Every replica has a node that ZooKeeper numbers and removes when the replica's session ends; the lowest number leads. A leader that
cannot reach ZooKeeper stops leading at once, on its own. One that was paused does not know better when it wakes up: what it then appends
meets the log, where its successor was first.
"""

from __future__ import annotations

import threading
from typing import Any

from meander.errors import ConfigError

ROOT = "/meander"


class Election:
    """A replica's candidature."""

    def __init__(self, hosts: str, group: str, name: str, session: float = 4.0, patience: float = 15.0) -> None:
        """``hosts`` are ZooKeeper's, ``group`` is what is led, ``session`` the seconds of silence after which a leader is replaced."""
        try:
            from kazoo.client import KazooClient, KazooState
        except ImportError:
            raise ConfigError("replication='leader' needs kazoo: pip install 'meander[leader]'") from None
        self._lost, self._suspended = KazooState.LOST, KazooState.SUSPENDED
        self._path, self._name = f"{ROOT}/{group}", name
        self._node: str | None = None
        self._lock = threading.Lock()
        self._leads = False
        self._closed = False
        self._client: Any = KazooClient(hosts=hosts, timeout=session)
        try:
            self._client.start(timeout=patience)
        except Exception as error:
            self._client.close()
            raise ConfigError(f"zookeeper='{hosts}': nothing answers there ({type(error).__name__})") from error
        self._client.add_listener(self._heard)
        self._again()

    def leads(self) -> bool:
        return self._leads

    def close(self) -> None:
        """Step down: the next one leads at once."""
        self._closed = True
        self._leads = False
        self._client.stop()
        self._client.close()

    def _count(self, event: Any = None) -> None:
        """See who is first, and be told when that may have changed."""
        if self._closed:
            return
        there = sorted(self._client.get_children(self._path, watch=lambda event: self._client.handler.spawn(self._count)))
        self._leads = bool(there) and there[0] == self._node and self._client.connected

    def _heard(self, state: Any) -> None:
        if state in (self._lost, self._suspended):
            self._leads = False
            if state == self._lost:
                self._node = None
        elif not self._closed:
            self._client.handler.spawn(self._again)

    def _again(self) -> None:
        """Have a node of this session, and see who is first."""
        with self._lock:
            if self._node is None and not self._closed:
                self._client.ensure_path(self._path)
                made = self._client.create(f"{self._path}/n-", self._name.encode(), ephemeral=True, sequence=True)
                self._node = made.rsplit("/", 1)[1]
        self._count()
