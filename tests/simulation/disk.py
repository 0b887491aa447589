"""The store of a simulation: a disk that outlives every driver, a ledger that checks each effect, and a driver's faulty view of it.

Faults happen to a driver, not to the disk: a view raises before or after the effect, lets it arrive late, answers wrongly that the
name existed, dies, or runs somebody else's whole life in the middle of an operation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.memory_store import MemoryStore

from meander.errors import Retryable
from meander.state.manifest import Manifest


class Crash(BaseException):
    """The driver's process is gone. Not an Exception: no handler of ours may survive it."""


class Ledger:
    """Everything that was ever decided, although the store forgets: applied to each effect, it is the first to see one that must not be."""

    def __init__(self, retain: int) -> None:
        self.retain = retain
        self.manifest = Manifest()
        self.history: dict[int, Manifest] = {0: Manifest()}
        """After the last entry of each epoch: what ``read_manifest(store, epoch)`` must say."""
        self.states: list[Manifest] = []
        """After every entry."""
        self.epochs: list[dict[str, Any]] = []
        self.names: dict[int, set[str]] = {0: set()}
        """What the source ``named`` had taken, per epoch."""
        self.entries: dict[str, bytes] = {}
        self.published: set[int] = set()
        self.first_snapshot: str | None = None

    def put(self, name: str, data: bytes) -> None:
        if name.startswith("manifest/"):
            self.first_snapshot = self.first_snapshot or name
        if not name.startswith("log/"):
            return
        entry = json.loads(data)
        _, generation, position = name.split("/")
        if entry["kind"] == "takeover" and int(position) <= self.manifest.position:
            return  # sealed a hole that collection left, not the log's end: must have no effect, which all that follows checks
        if name in self.entries:
            assert self.entries[name] == data, f"{name} was written again with other content"
            return  # a late put of what was committed and collected long ago
        assert int(position) == self.manifest.position + 1, f"{entry['kind']} {name} written, the log is at {self._at()}"
        assert int(generation) == self.manifest.generation, f"{entry['kind']} {name} of an old generation, the log is at {self._at()}"
        self.entries[name] = data
        self.manifest = self.manifest.apply(entry)
        self.states.append(self.manifest)
        self.history[self.manifest.epoch] = self.manifest
        if entry["kind"] == "epoch":
            self.epochs.append(entry)
            self.names[entry["epoch"]] = self.names[entry["epoch"] - 1] | set(entry["seen"].get("named", []))

    def delete(self, name: str) -> None:
        if name.startswith("segments/"):
            for epoch in self.retained():
                assert name not in self.history[epoch].segment_names(), f"{name} deleted, epoch {epoch} of {self.manifest.epoch} needs it"
        elif name.startswith("staged/") and self.manifest.epoch not in self.published:
            files = [file["name"] for files in self.manifest.staged.values() for file in files]
            assert name not in files, f"{name} deleted before epoch {self.manifest.epoch} was published"

    def retained(self) -> range:
        return range(max(0, self.manifest.epoch - self.retain), self.manifest.epoch + 1)

    def _at(self) -> str:
        return f"{self.manifest.generation}/{self.manifest.position} in epoch {self.manifest.epoch}"


class Disk(MemoryStore):
    """What is durable. Late puts arrive by the count of operations."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self.operations = 0
        self.late: list[tuple[int, Callable[[], None]]] = []

    def tick(self) -> None:
        self.operations += 1
        if self.late:
            due = [act for at, act in self.late if at <= self.operations]
            self.late = [(at, act) for at, act in self.late if at > self.operations]
            for act in due:
                act()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = data
        self.ledger.put(name, data)
        return True

    def delete(self, name: str) -> None:
        self.ledger.delete(name)
        super().delete(name)


@dataclass
class Faults:
    """What happens to one driver, by the number of its operation; ``often`` is the chance of a fault that passes."""

    often: float = 0.0
    crash_at: int | None = None
    stopped_at: int | None = None
    meanwhile: Callable[[], None] = field(default=lambda: None)
    """What the world does while the driver stands still: another one takes over."""


class View:
    """One driver's connection to the disk. Implements Store."""

    def __init__(self, disk: Disk, faults: Faults, rng: random.Random) -> None:
        self.url = "memory://simulation"
        self.disk, self.faults, self._rng = disk, faults, rng
        self.count = 0

    def get(self, name: str) -> bytes | None:
        return self.act(lambda: self.disk.get(name))

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        return self.act(lambda: self.disk.get_range(name, start, length))

    def map(self, name: str) -> pa.Buffer | None:
        return self.act(lambda: self.disk.map(name))

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        self.act(lambda: self.disk.put(name, data), writes=True)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        created: bool = self.act(lambda: self.disk.put_if_absent(name, data), writes=True)
        if created and self._rng.random() < self.faults.often:
            return False  # the connection retried by itself and met its own success
        return created

    def list(self, prefix: str) -> list[str]:
        found: list[str] = self.act(lambda: self.disk.list(prefix))
        self._rng.shuffle(found)
        return found

    def delete(self, name: str) -> None:
        self.act(lambda: self.disk.delete(name))

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:  # a crash, or a failure, may come between any two
            self.delete(name)

    def local(self, name: str) -> Path | None:
        return None

    def act(self, effect: Callable[[], Any], writes: bool = False) -> Any:
        """One operation, with whatever befalls it."""
        self.count += 1
        self.disk.tick()
        faults, rng = self.faults, self._rng
        if self.count == faults.stopped_at:
            if rng.random() < 0.5:
                faults.meanwhile()
            else:
                result = effect()
                faults.meanwhile()
                return result
        if self.count == faults.crash_at:
            kind = rng.randrange(3)
            if kind == 0:
                effect()
            elif kind == 1 and writes:
                self._later(effect)
            raise Crash
        if faults.often and rng.random() < faults.often:
            kind = rng.randrange(3)
            if kind == 0:
                effect()
            elif kind == 1 and writes:
                self._later(effect)
            raise Retryable("simulated: no answer")
        return effect()

    def _later(self, effect: Callable[[], Any]) -> None:
        self.disk.late.append((self.disk.operations + self._rng.randrange(1, 150), effect))
