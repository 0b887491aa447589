"""The election of a leader among replicas, through ZooKeeper.

Every replica has a node that ZooKeeper numbers and removes when the replica's session ends; the
lowest number leads. A leader that cannot reach ZooKeeper stops leading at once, on its own. A
leader that was paused still believes that it leads when it wakes up: its append then fails, since
its successor's entry is in the log.

A session shows that a driver lives, not that its executors do. So a replica that waits for a leader
in vain may *depose* it: remove its node. The next in line leads; the deposed replica, once it
learns of it, becomes a candidate again, behind all others. It need not agree, nor even be awake:
two replicas that both act as leader for a moment do no harm, since the log takes an epoch once.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from meander.errors import ConfigError

ROOT = "/meander"
_SESSION = 0.75
"""A session's share of the timeout: the rest is for ZooKeeper to notice, for the news to reach the
next leader, and for its first epoch."""


class Election:
    """A replica's candidature."""

    def __init__(self, hosts: str, group: str, name: str, timeout: float = 4.0, patience: float = 15.0) -> None:
        """``hosts`` are ZooKeeper's, ``group`` is what is led, ``timeout`` the seconds within which a leader that is silent is replaced."""
        try:
            from kazoo.client import KazooClient, KazooState
            from kazoo.exceptions import KazooException
        except ImportError:
            raise ConfigError("replication='leader' needs kazoo: pip install 'meander-streaming[leader]'") from None
        self._lost, self._suspended = KazooState.LOST, KazooState.SUSPENDED
        self._trouble: type[Exception] = KazooException
        self._path, self._name = f"{ROOT}/{group}", name
        self.deposes_after = timeout / 2
        """Seconds for which a leader may be waited for in vain. With what the change itself takes that is less than the timeout."""
        self._node: str | None = None
        self._first: str | None = None
        self._lock = threading.RLock()
        self._leads = False
        self._closed = False
        self._client: Any = KazooClient(hosts=hosts, timeout=_SESSION * timeout)
        try:
            self._client.start(timeout=patience)
        except Exception as error:
            self._client.close()
            raise ConfigError(f"zookeeper='{hosts}': nothing answers there ({type(error).__name__})") from error
        self._client.add_listener(self._heard)
        self._stand()

    def leads(self) -> bool:
        return self._leads

    def leader(self) -> str | None:
        """The candidature that leads, another one after every change; None where that cannot be known just now."""
        return self._first

    def depose(self, leader: str) -> None:
        """End a candidature, of any replica; nothing happens if it has ended already. Does not
        wait."""
        self._client.delete_async(f"{self._path}/{leader}")

    def step_down(self) -> None:
        """Let the next in line lead, if there is one, and stand again behind all others."""
        node = self._node
        if self._leads and node is not None:
            self._leads = False
            self.depose(node)

    def close(self) -> None:
        """Leave: the next one leads at once."""
        self._closed = True
        self._leads = False
        self._client.stop()
        self._client.close()

    def _count(self) -> None:
        """See who is first, and be told when that may have changed. One at a time: an older count must not come after a newer one."""
        with self._lock:
            if self._closed:
                return
            there = self._children()
            if self._node is not None and self._node not in there:  # deposed
                self._leads = False
                self._node = self._own_node(there)
                there = self._children()
            self._first = there[0] if there and self._client.connected else None
            self._leads = self._first is not None and self._first == self._node

    def _children(self) -> list[str]:
        return sorted(self._client.get_children(self._path, watch=self._changed))  # the same watch each time: it is told once

    def _own_node(self, there: list[str]) -> str:
        """A node of this session: the one that there is, should an answer have been lost when it was made, or a new one."""
        for name in there:
            node = self._client.exists(f"{self._path}/{name}")
            if node is not None and node.owner_session_id == self._client.client_id[0]:
                return name
        made: str = self._client.create(f"{self._path}/n-", self._name.encode(), ephemeral=True, sequence=True)
        return made.rsplit("/", 1)[1]

    def _changed(self, event: Any) -> None:
        self._client.handler.spawn(self._stand_if_connected)

    def _heard(self, state: Any) -> None:
        if state in (self._lost, self._suspended):
            self._leads, self._first = False, None
            if state == self._lost:
                self._node = None
        elif not self._closed:
            self._client.handler.spawn(self._stand_if_connected)

    def _stand_if_connected(self) -> None:
        with contextlib.suppress(self._trouble):  # the connection is lost: when it is back, this is done again
            self._stand()

    def _stand(self) -> None:
        """Have a node of this session, and see who is first."""
        with self._lock:
            if self._node is None and not self._closed:
                self._client.ensure_path(self._path)
                self._node = self._own_node(self._children())
            self._count()
