"""How a handle reaches its replicas: each serves its control plane on loopback, and a change through any of them is one of all.

The secrets that changes need are in a file beside the replicas' logs, which only its owner can read: replicas read it when they start, and
a handle that adopts them finds it there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from meander.clock import Clock
from meander.control.client import Client, NothingListens
from meander.errors import ConfigError, Retryable

Answer = TypeVar("Answer")
_LOOK_EVERY = 0.1
_PATIENCE = 60.0


@dataclass(frozen=True)
class Tokens:
    """The secrets that changes of the replicas need."""

    code: str = field(repr=False)
    """For changes with code, and for all others."""

    @property
    def changes(self) -> str:
        """For changes without code. A server requires a second token for them, which no user
        needs."""
        return hashlib.sha256(self.code.encode()).hexdigest()

    @classmethod
    def kept_in(cls, file: Path, clock: Clock) -> Tokens:
        """Those of a file, which is made where it is not there."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
            out.write(clock.new_id() + clock.new_id())
        return cls(file.read_text())


class Reach:
    """The replicas of one flow, as targets of requests. ``replicas`` says which there are, and at
    which address."""

    def __init__(self, flow: str, replicas: Callable[[], list[dict[str, Any]]], tokens: Tokens, clock: Clock) -> None:
        self._flow, self._replicas, self._tokens, self._clock = flow, replicas, tokens, clock

    def addresses(self) -> dict[str, str]:
        """Of those at work, by name."""
        return {one["name"]: one["url"] for one in self._replicas() if one["state"] == "running" and one["url"]}

    def client(self, url: str) -> Client:
        return Client(url, self._tokens.code)

    def ask(self, question: Callable[[Client], Answer], replica: str | None = None, patience: float = _PATIENCE) -> Answer:
        """The answer of a replica: the named one, or else any. If it dies meanwhile it is asked
        again when it is back, or another in its place: so the request must be safe to repeat."""
        self._check(replica)
        until = self._clock.monotonic() + patience
        while True:
            for name, url in self.addresses().items():
                if replica in (None, name):
                    with contextlib.suppress(NothingListens):
                        return question(self.client(url))
            if self._clock.monotonic() >= until:
                who = "no replica" if replica is None else f"replica '{replica}' does not answer; it"
                raise Retryable(f"flow '{self._flow}': {who} is at work and can be asked; status() shows what they are doing")
            self._clock.sleep(_LOOK_EVERY)

    def one_of(self, replica: str | None) -> str:
        """The replica whose executors are meant: each replica has a Spark of its own."""
        names = [one["name"] for one in self._replicas()]
        if replica is None and len(names) != 1:
            raise ConfigError(
                f"each replica of flow '{self._flow}' has executors of its own: say whose are meant, as in replica='a'; "
                f"there are {', '.join(names) or 'none'}"
            )
        return names[0] if replica is None else replica

    def _check(self, replica: str | None) -> None:
        names = [one["name"] for one in self._replicas()]
        if replica is not None and replica not in names:
            raise ConfigError(f"flow '{self._flow}' has no replica '{replica}'; there are {', '.join(names) or 'none'}")
