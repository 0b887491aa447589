"""A run's metrics pushed to a Prometheus Pushgateway: for flows that cannot be scraped, since they
are short or behind a firewall.

A thread beside the loop, which never disturbs it: a gateway that does not answer is said once, and tried again with the next push. The last
push is made when the flow has stopped, so that the gateway's numbers are the final ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, push_to_gateway

from meander.clock import Clock
from meander.control.exposition import Exposition
from meander.control.running import Running
from meander.errors import ConfigError

JOB = "meander"
_LOG = logging.getLogger("meander")
_PATIENCE = 5.0


Group = tuple[dict[str, str], CollectorRegistry]
"""Metrics, and what a gateway keeps them by."""


class Pusher:
    """Pushes from the moment it is made until it is closed.

    One group per flow, ``/metrics/job/meander/flow/<name>``; each replica has its own, ``…/replica/<name>``.
    """

    def __init__(self, flow: str, gateway: str, every: float, collect: Callable[[], Iterable[Group]]) -> None:
        self.gateway = check_gateway(gateway)
        self._flow, self._every, self._collect = flow, every, collect
        self._silent = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="meander-push", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Once more, and no more."""
        self._stop.set()
        self._thread.join(2 * _PATIENCE)

    def _repeat(self) -> None:
        while not self._stop.wait(self._every):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            for group, registry in self._collect():
                push_to_gateway(self.gateway, JOB, registry, group, timeout=_PATIENCE)
            self._silent = False
        except Exception as error:  # whatever it is, the flow's business comes first
            if not self._silent:
                _LOG.warning(
                    f"metrics of flow '{self._flow}' cannot be pushed to {self.gateway}: {error}; tried again every {self._every:g} s"
                )
            self._silent = True


def push_run(run: Running, gateway: str, every: float, clock: Clock, replica: str | None = None) -> Pusher:
    """Push the metrics of a run in this process."""
    group = {"flow": run.name} if replica is None else {"flow": run.name, "replica": replica}
    exposition = Exposition(run.name, clock)
    run.on_epoch(exposition)
    return Pusher(run.name, gateway, every, lambda: [(group, exposition.registry(run.status()))])


def check_gateway(gateway: str) -> str:
    """An address that can be pushed to.

    >>> check_gateway("127.0.0.1:9091")
    'http://127.0.0.1:9091'
    """
    url = gateway if "://" in gateway else f"http://{gateway}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"pushgateway {gateway!r}: write its address, such as 'http://127.0.0.1:9091'")
    return url
