"""The signs of life that replicas leave in the store, as anybody can read them. Spark-free.

A replica writes ``replicas/<generation>/<name>`` twice a second, with a number that grows. Whoever looks twice knows by their own clock
whether it lives: what has not changed for ``SILENT_AFTER`` seconds is silent. Machines' clocks need not agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from meander.clock import Clock
from meander.state.store import Store

FOLDER = "replicas/"
SILENT_AFTER = 3.0
"""As long as the replicas themselves wait before they do without one."""
_LOOK_EVERY = 0.2


@dataclass(frozen=True)
class Sign:
    """What a replica said last."""

    name: str
    generation: int
    said: Mapping[str, Any]

    @property
    def epoch(self) -> int:
        return int(self.said["epoch"])

    @property
    def process(self) -> int:
        return int(self.said["process"])

    @property
    def host(self) -> str:
        return str(self.said["host"])

    @property
    def url(self) -> str | None:
        return self.said.get("url")

    @property
    def at(self) -> float | None:
        """When it was said, by the clock of the replica's machine: for people to read, and nothing else."""
        return self.said.get("at")

    @property
    def place(self) -> str:
        """Where it is in the store."""
        return f"{FOLDER}{self.generation:08d}/{self.name}"


@dataclass(frozen=True)
class Sighting:
    """A sign, and since when it has been the same."""

    sign: Sign
    changed: float
    looked: float
    alive: bool
    """Whether it has changed before our eyes, not too long ago."""

    @property
    def silence(self) -> float:
        """For how long it has said nothing new, as far as we have looked."""
        return self.looked - self.changed


class Watch:
    """Looks at the signs again and again."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._seen: dict[str, Sighting] = {}
        self._moved: set[tuple[str, int]] = set()

    def look(self) -> dict[str, Sighting]:
        """The newest generation's signs, by the replicas' names. Retryable where the store does not answer."""
        signs = read_signs(self._store, {name: seen.sign for name, seen in self._seen.items()})
        now, before, self._seen = self._clock.monotonic(), self._seen, {}
        for sign in signs:
            last = before.get(sign.name)
            changed = now if last is None or last.sign != sign else last.changed
            if last is not None and last.sign != sign:
                self._moved.add((sign.name, sign.process))
            alive = (sign.name, sign.process) in self._moved and now - changed < SILENT_AFTER
            self._seen[sign.name] = Sighting(sign, changed, now, alive)
        return dict(self._seen)

    def settle(self) -> dict[str, Sighting]:
        """Look until it is known of each whether it lives. Takes half a second where all do, and three where one does not."""
        found = self.look()
        until = self._clock.monotonic() + SILENT_AFTER
        while found and not all(seen.alive for seen in found.values()) and self._clock.monotonic() < until:
            self._clock.sleep(_LOOK_EVERY)
            found = self.look()
        return found


def read_signs(store: Store, known: Mapping[str, Sign] | None = None) -> list[Sign]:
    """The signs of the newest generation that has some. One that is just being written counts as it was."""
    places: dict[int, list[str]] = {}
    for place in store.list(FOLDER):
        parts = place.split("/")
        if len(parts) == 3 and parts[1].isdigit():
            places.setdefault(int(parts[1]), []).append(parts[2])
    found = []
    for name in sorted(places[generation := max(places)]) if places else ():
        said = parse(store.get(f"{FOLDER}{generation:08d}/{name}"))
        if said is not None and {"epoch", "process", "host"} <= said.keys():
            found.append(Sign(name, generation, said))
        elif (last := (known or {}).get(name)) is not None and last.generation == generation and said is None:
            found.append(last)
    return found


def parse(data: bytes | None) -> dict[str, Any] | None:
    """An object that its writer may be just writing: None where it is not whole."""
    try:
        said = None if data is None else json.loads(data)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def keeper(alive: Iterable[str]) -> str | None:
    """Who keeps house: the first by name of those that live.

    >>> keeper(["b", "a"]), keeper([])
    ('a', None)
    """
    return min(alive, default=None)
