"""The control plane's view of a running flow: the verbs that it calls, and the listener for epochs.
``meander.run.Run`` has this protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from meander.settings import Strategy


class Running(Protocol):
    """A running flow. Every method may be called from any thread."""

    name: str

    def status(self) -> dict[str, Any]:
        """The status, as plain data."""

    def rescale(self, operator: str, parallelism: int, strategy: Strategy = "hybrid") -> Any:
        """Returns a named tuple when it is in force."""

    def migrate(
        self, operators: Sequence[str], executor: str, key_groups: Sequence[int] | None = None, strategy: Strategy = "hybrid"
    ) -> Any:
        """Returns a named tuple when it is in force."""

    def modify_as_data(self, data: Mapping[str, Any], code: bytes | None = None) -> dict[str, Any]:
        """Change it while it runs, by plain data or by ``code``, which is run; returns plain data:
        the result once the change is in force, or the effects that it would have."""

    def modifications(self) -> list[dict[str, Any]]:
        """All changes that were ever asked for, the oldest first."""

    def evacuate(self, executor: str) -> None: ...

    def stop(self) -> None: ...

    def on_epoch(self, listener: Callable[[Any], None]) -> None:
        """Call a function after every epoch with an EpochDone."""
