"""The signs of life that replicas leave in the store: the one place that writes and reads them.

A replica writes ``replicas/<generation>/<name>`` twice a second, with a number that grows. A reader
that looks twice finds out by its own clock whether the replica lives: a sign that has not changed
for ``SILENT_AFTER`` seconds is silent. Machines' clocks need not agree.

A sign that cannot be read ages like any other: that it is there says nothing, only that it changes does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from meander.clock import Clock
from meander.processes import ProcessId
from meander.state.formats import KEY, SIGN
from meander.state.stores.contract import Store

FOLDER = "replicas/"
SILENT_AFTER = 3.0
"""Seconds without a new sign after which a replica is done without, by its siblings and by its supervisor."""
_LOOK_EVERY = 0.2
LONGEST_LOOK = 1.0
"""Two looks make for no more silence than this: one that was paused, or could not reach the store, has not listened all the time."""


@dataclass(frozen=True)
class Said:
    """The content of a replica's sign."""

    number: int
    epoch: int
    process: ProcessId
    url: str | None = None
    at: float | None = None
    """When it was said, by the clock of the replica's machine: for people to read, and nothing else."""
    leads: bool | None = None
    """Whether it leads; None where replicas have no leader."""
    leads_as: str | None = None
    """The candidature that it leads as."""
    step: int | None = None
    """The number of the step that its loop is in, if it is in one."""

    def to_bytes(self) -> bytes:
        return SIGN.write({**asdict(self), **self.process.to_json()})

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Said | None:
        """None where it cannot be read.

        >>> Said.from_bytes(Said(1, 7, ProcessId.mine()).to_bytes()) == Said(1, 7, ProcessId.mine())
        True
        >>> Said.from_bytes(b""), Said.from_bytes(b"7"), Said.from_bytes(b'{"number": 1, "epoch": 7}')
        (None, None, None)
        """
        said = parse(data)
        try:
            process = None if said is None else ProcessId.from_json(said)
            if said is None or process is None or not SIGN.can_read(said):
                return None
            at, leads, step = said.get("at"), said.get("leads"), said.get("step")
            return cls(
                int(said["number"]),
                int(said["epoch"]),
                process,
                None if said.get("url") is None else str(said["url"]),
                None if at is None else float(at),
                None if leads is None else bool(leads),
                None if said.get("leads_as") is None else str(said["leads_as"]),
                None if step is None else int(step),
            )
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Sign:
    """A sign of life as it is in the store."""

    name: str
    generation: int
    data: bytes
    said: Said | None
    """What it says, or what it said when it could be read last. None where it never could."""

    def check(self) -> None:
        """Corrupted where it is of a format that cannot be read. For people: a replica sees that it changes, and needs no more."""
        if self.said is None and (said := parse(self.data)) is not None and KEY in said:
            SIGN.check(said[KEY], self.place)

    @property
    def epoch(self) -> int:
        return 0 if self.said is None else self.said.epoch

    @property
    def process(self) -> ProcessId | None:
        return None if self.said is None else self.said.process

    @property
    def place(self) -> str:
        """Where it is in the store."""
        return place_of(self.generation, self.name)


@dataclass(frozen=True)
class Sighting:
    """A sign, and for how long it has been the same."""

    sign: Sign
    silence: float
    """For how many seconds it has said nothing new, as far as we have looked."""
    alive: bool
    """Whether it has changed before our eyes, not too long ago."""


class Watch:
    """Looks at the signs again and again."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._seen: dict[str, Sighting] = {}
        self._looked = clock.monotonic()
        self._moved: set[tuple[str, ProcessId | None]] = set()

    def look(self) -> dict[str, Sighting]:
        """The newest generation's signs, by the replicas' names. Retryable where the store does not answer."""
        signs = read_signs(self._store, known=[seen.sign for seen in self._seen.values()])
        now, before, self._seen = self._clock.monotonic(), self._seen, {}
        passed, self._looked = min(now - self._looked, LONGEST_LOOK), now
        for sign in signs:
            last = before.get(sign.name)
            is_new = last is None or last.sign.data != sign.data
            if last is not None and is_new:
                self._moved.add((sign.name, sign.process))
            silence = 0.0 if last is None or is_new else last.silence + passed
            alive = (sign.name, sign.process) in self._moved and silence < SILENT_AFTER
            self._seen[sign.name] = Sighting(sign, silence, alive)
        return dict(self._seen)

    def settle(self) -> dict[str, Sighting]:
        """Look until it is known of each whether it lives. Takes half a second where all do, and three where one does not."""
        found = self.look()
        until = self._clock.monotonic() + SILENT_AFTER
        while found and not all(seen.alive for seen in found.values()) and self._clock.monotonic() < until:
            self._clock.sleep(_LOOK_EVERY)
            found = self.look()
        return found


def place_of(generation: int, name: str) -> str:
    return f"{FOLDER}{generation:08d}/{name}"


def read_signs(store: Store, generation: int | None = None, known: Iterable[Sign] = ()) -> list[Sign]:
    """The signs of a generation, or of the newest that has some. A sign that cannot be read has its
    last ``known`` content."""
    places: dict[int, list[str]] = {}
    for place in store.list(FOLDER if generation is None else place_of(generation, "")):
        parts = place.split("/")
        if len(parts) == 3 and parts[1].isdigit():
            places.setdefault(int(parts[1]), []).append(parts[2])
    newest = max(places, default=0)
    before = {sign.name: sign for sign in known if sign.generation == newest}
    found = []
    for name in sorted(places.get(newest, ())):
        data = store.get(place_of(newest, name))
        if data is not None:
            said = Said.from_bytes(data) or (before[name].said if name in before else None)
            found.append(Sign(name, newest, data, said))
    return found


def parse(data: bytes | None) -> dict[str, Any] | None:
    """An object of JSON: None where it is not there, or cannot be read."""
    try:
        said = None if data is None else json.loads(data)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def keeper(alive: Iterable[Sign]) -> str | None:
    """The living replica that merges and removes segments: the leader or, without a leader, the
    first by name.

    Of two that believe that they lead, the one with the later candidature has replaced the other.
    """
    there = [(sign.name, sign.said) for sign in alive if sign.said is not None]
    if any(said.leads is not None for _, said in there):
        leaders = [(said.leads_as or "", name) for name, said in there if said.leads]
        return max(leaders)[1] if leaders else None
    return min((name for name, _ in there), default=None)
