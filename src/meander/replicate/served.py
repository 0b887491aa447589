"""Replicas as a running flow for the control plane: requests are passed on to one of them, and
their metrics are shown together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meander.control.client import Client, NothingListens
from meander.errors import MeanderError
from meander.outcomes import Migrated, Rescaled
from meander.replicate.reach import Reach
from meander.settings import Strategy

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_STATUS_WITHIN = 5.0


class Served:
    """``control.running.Running`` for replicas."""

    def __init__(self, name: str, reach: Reach, own_status: Callable[[], dict[str, Any]], stop: Callable[[], None]) -> None:
        self.name = name
        self._reach, self._own_status, self._stop = reach, own_status, stop

    def status(self) -> dict[str, Any]:
        """That of one replica, and over it what is said of all of them."""
        own = self._own_status()
        if own["state"] != "running":
            return {"operators": {}, "stages": [], "executors": {}, **own}
        return {**self._reach.ask(Client.status, patience=_STATUS_WITHIN), **own}

    def rescale(self, operator: str, parallelism: int, strategy: Strategy = "hybrid") -> Rescaled:
        done = self._reach.ask(lambda client: client.rescale(operator, parallelism, strategy))
        return Rescaled(**{**done, "failures": tuple(done["failures"])})

    def migrate(
        self,
        operators: Sequence[str],
        executor: str,
        key_groups: Sequence[int] | None = None,
        strategy: Strategy = "hybrid",
        replica: str | None = None,
    ) -> Migrated:
        whose, groups = self._reach.one_of(replica), None if key_groups is None else list(key_groups)
        done = self._reach.ask(lambda client: client.migrate(list(operators), executor, groups, strategy), whose)
        return Migrated(**{**done, "operators": tuple(done["operators"]), "failures": tuple(done["failures"])})

    def modify_as_data(self, data: Mapping[str, Any], code: bytes | None = None) -> dict[str, Any]:
        done = self._reach.ask(lambda client: client.modify_as_data(data, code))
        return {name: value for name, value in done.items() if name != "dry_run"}

    def modifications(self) -> list[dict[str, Any]]:
        return self._reach.ask(Client.modifications)

    def evacuate(self, executor: str, replica: str | None = None) -> None:
        self._reach.ask(lambda client: client.evacuate(executor), self._reach.one_of(replica))

    def stop(self) -> None:
        self._stop()

    def on_epoch(self, listener: Callable[[Any], None]) -> None:
        """Epochs are run in other processes: their numbers come with ``metrics``."""

    def metrics(self) -> bytes:
        """Those of all replicas, each with the replica's name."""
        from meander.control.gathered import as_text  # Prometheus' client, which writing a flow does not need

        return as_text(self._texts())

    def registries(self) -> Iterator[tuple[dict[str, str], CollectorRegistry]]:
        """The same, replica by replica, for a gateway."""
        from meander.control.gathered import as_registry

        for name, text in self._texts().items():
            yield {"flow": self.name, "replica": name}, as_registry(text)

    def _texts(self) -> dict[str, str]:
        found = {}
        for name, url in self._reach.addresses().items():
            try:
                found[name] = self._reach.client(url).metrics()
            except (NothingListens, MeanderError):  # it has just died, or hangs: the others are shown
                continue
        return found
