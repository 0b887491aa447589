"""The world that outlives every driver: a store, a record of all that was committed, folders of input and output, and time.

The store is a dictionary with the contract of a folder (``DirStore``). Staged files are real files where output is linked, and are
bytes where it is copied. Every log entry is kept for the checker, with the bytes that it names as output.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from tests.memory_store import MemoryStore

from meander.connect.source import Batch, Choice, Split
from meander.state.manifest import Manifest

Row = tuple[Any, ...]
COLUMNS: dict[str, Any] = {"id": pl.Int64(), "k": pl.Int64(), "g": pl.String(), "v": pl.Int64(), "ts": pl.Datetime("us")}
_NUMBERS = {**COLUMNS, "ts": pl.Int64()}


def extra_of(number: int) -> int | None:
    """What a row has in the column that a source may gain: some rows are from before, and lack it."""
    return None if number % 3 == 0 else 7 * number


SECOND = 1_000_000


class Wrong(AssertionError):
    """Something that must never be. ``kind`` is a short word by which failures are counted."""

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(f"{kind}: {told}")
        self.kind = kind


class OpenTables(MemoryStore):
    """What is durable. Checks every log entry when it is written."""

    def __init__(self, world: World, linked: bool) -> None:
        super().__init__()
        self.world, self.linked = world, linked
        self.manifest = Manifest()
        self.entries: list[dict[str, Any]] = []
        self.epochs: dict[int, dict[str, Any]] = {}
        self.staged: dict[int, dict[str, list[bytes]]] = {}
        self.flushed: dict[int, bool] = {}
        self.counted: dict[int, dict[str, int]] = {}
        self.started: dict[int, float] = {}
        self._took_over = 0.0
        self.states: list[Manifest] = []
        """After every entry."""

    def put(self, name: str, data: Any) -> None:
        super().put(name, data)
        if self.linked and name.startswith("staged/"):
            path = self.world.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.objects[name])

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = bytes(data)
        if name.startswith("log/"):
            self._entry(name, json.loads(data))
        return True

    def delete(self, name: str) -> None:
        super().delete(name)
        if self.linked and name.startswith("staged/"):
            (self.world.folder / name).unlink(missing_ok=True)

    def local(self, name: str) -> Path | None:
        """A path only where the driver asks whether this is a folder at all, and for what can be linked."""
        if not name:
            return self.world.folder / "nothing"
        return self.world.folder / name if self.linked and name.startswith("staged/") else None

    def _entry(self, name: str, entry: dict[str, Any]) -> None:
        _, generation, position = name.split("/")
        if entry["kind"] == "takeover" and int(position) <= self.manifest.position:
            return  # sealed a hole that collection left: has no effect
        if int(position) != self.manifest.position + 1 or int(generation) != self.manifest.generation:
            if any((e["generation"], e["position"]) == (int(generation), int(position)) for e in self.entries):
                return  # a late put of what was committed and collected long ago
            raise Wrong("log", f"{entry['kind']} {name} written, the log is at {self.manifest.generation}/{self.manifest.position}")
        self.manifest = self.manifest.apply(entry)
        self.states.append(self.manifest)
        self.entries.append({"generation": int(generation), "position": int(position), "kind": entry["kind"]})
        if entry["kind"] == "takeover":
            self._took_over = entry["now"]
        if entry["kind"] == "epoch":
            epoch = entry["epoch"]
            self.started[epoch] = self._took_over
            self.epochs[epoch] = entry
            self.flushed[epoch] = self.world.flushing.get(epoch, False)
            self.counted[epoch] = self.world.counting.get(epoch, {})
            self.staged[epoch] = {
                sink: [self.objects[file["name"]] for file in files if file["rows"]] for sink, files in entry["staged"].items()
            }
            self.world.say(f"  epoch {epoch} committed{' (flush)' if self.flushed[epoch] else ''}, {entry['plan'].get('modification')}")


class WorldClock:
    """Time of one process: the world's, and its own idea of the hour."""

    def __init__(self, world: World, skew: float, sleeps: Callable[[], None]) -> None:
        self._world, self._skew, self._sleeps = world, skew, sleeps

    def now(self) -> float:
        return 1_000_000.0 + self._world.time + self._skew

    def monotonic(self) -> float:
        return self._world.time

    def sleep(self, seconds: float) -> None:
        self._world.time += max(0.0, seconds)
        self._sleeps()

    def new_id(self) -> str:
        return f"{self._world.ids.getrandbits(64):016x}"


@dataclass
class World:
    """Everything that a schedule has beside its drivers."""

    seed: int
    linked: bool
    time: float = 0.0
    history: list[str] = field(default_factory=list)
    calls: dict[str, list[tuple[int, pl.DataFrame]]] = field(default_factory=lambda: defaultdict(list))
    """What functions of ``foreach_batch`` were called with, per place."""
    flushing: dict[int, bool] = field(default_factory=dict)
    """Whether an epoch's decision is to close what is open, as it was begun last."""
    counting: dict[int, dict[str, int]] = field(default_factory=dict)
    """How many partitions each source had then, where it says so."""
    partitions: dict[str, int] = field(default_factory=dict)
    """How many it has now."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ids = random.Random(self.seed + 1)
        place = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="meander-life-", dir=place if place.is_dir() else None))
        self.shelf = OpenTables(self, self.linked)
        self.late: list[tuple[int, Callable[[], Any]]] = []
        self.operations = 0
        self.memories: dict[str, Any] = {}
        self.coming: list[tuple[str, tuple[str, int, list[Row]]]] = []
        self.actors: list[Any] = []
        self.running: Any = None
        """The actor whose turn it is."""
        WORLDS[:] = [self]
        self.lag = 0
        """After how many looks at the latest a merge is done."""

    def say(self, told: str) -> None:
        self.history.append(told)

    def arrive(self, files: int) -> None:
        """Input comes in: so many more files, wherever they belong."""
        for feed, file in self.coming[:files]:
            FEEDS[feed].append(file)
        del self.coming[:files]

    def shrink(self, source: str) -> None:
        """From now on a source has one partition. What is not read yet is in that one."""
        self.say(f"source {source} has one partition from now on")
        self.partitions[source] = 1
        self.coming = [(feed, (name, 0 if feed[0] == source else part, rows)) for feed, (name, part, rows) in self.coming]
        for feed, files in FEEDS.items():
            if feed[0] == source:
                files[:] = [(name, 0, rows) for name, _, rows in files]

    def beats(self) -> None:
        """Signs of life of all processes, twice a second."""
        for actor in self.actors:
            if self.time - actor.beaten >= 0.5:
                actor.beaten = self.time
                actor.beat()

    def look_at_output(self) -> None:
        """Whoever reads a folder of output now, as Polars reads it, finds whole files."""
        for file in (self.folder / "out").rglob("*"):
            if file.is_file() and not file.read_bytes().endswith(b"PAR1"):
                raise Wrong("torn", f"{file.relative_to(self.folder)} is there, and has {file.stat().st_size} bytes")

    def close(self) -> None:
        for actor in self.actors:
            actor.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        FEEDS.clear()
        WORLDS.clear()


WORLDS: list[World] = []
"""The one that there is: functions that have travelled find it here."""
FEEDS: dict[str, list[tuple[str, int, list[Row]]]] = {}
"""The files of every folder of input: (name, partition, rows). One world at a time."""


@dataclass(frozen=True)
class Feed:
    """A source like ``md.files``, which takes the names that it has not seen; or, of a folder that is a log, like a queue's, which goes on
    at a position: what it has gone past does not come again, whoever is started. Where it is does not count for its digest."""

    folder: str
    extra: bool = False
    """Whether it has the column ``w``."""
    thin: bool = False
    """Whether its values are narrow integers."""

    def schema(self) -> pl.Schema:
        values = {"v": pl.Int32()} if self.thin else {}
        return pl.Schema({**COLUMNS, **values, **({"w": pl.Int64()} if self.extra else {})})

    @property
    def partitions(self) -> int | None:
        return WORLDS[0].partitions.get(self.folder[0])

    @property
    def is_log(self) -> bool:
        return "-log" in self.folder

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> FeedCursor:
        return FeedCursor(self, set(seen), offset.get("taken", 0))

    def read(self, payload: dict[str, Any]) -> Batch:
        rows = pl.DataFrame(payload["rows"], _NUMBERS, orient="row")
        if self.extra:
            rows = rows.with_columns(w=pl.Series([extra_of(number) for number in rows["id"]], dtype=pl.Int64()))
        return Batch(rows.cast(dict(self.schema())))

    def describe(self) -> str:
        return f"feed {self.folder}"

    def canonical(self) -> str:
        return "feed"


@dataclass
class FeedCursor:
    feed: Feed
    seen: set[str]
    taken: int

    def look(self) -> None: ...

    def _new(self) -> list[tuple[str, int, list[Row]]]:
        if self.feed.is_log:
            return FEEDS[self.feed.folder][self.taken :]
        return [file for file in FEEDS[self.feed.folder] if file[0] not in self.seen]

    def choose(self, now: float, everything: bool) -> Choice | None:
        files = self._new()[: 1 if self.feed.is_log else 2]
        if not files:
            return None
        names = () if self.feed.is_log else tuple(name for name, _, _ in files)
        self.seen |= set(names)
        self.taken += len(files)
        splits = tuple(
            Split({"place": self.feed.folder, "file": n, "partition": p, "rows": r, "start": 0}, len(r), 8 * len(r)) for n, p, r in files
        )
        return Choice(splits, {"taken": self.taken}, names)

    def follow(self, given: Choice | None, agreed: Choice | None) -> None:
        if given is not None:
            self.seen -= set(given.seen)
            self.taken -= len(given.splits)
        if agreed is not None:
            self.seen |= set(agreed.seen)
            self.taken = agreed.offset["taken"]

    def backlog(self, now: float) -> bool:
        return bool(self._new())

    def waiting(self, now: float) -> int:
        return 0

    def slow_down(self, share: float) -> None: ...

    def finished(self) -> bool:
        return False

    def release(self, names: Any) -> None: ...

    def close(self) -> None: ...
