"""Opens the segments that a task reads, and stores the segments that it writes.

If the store is a folder of this machine, segments are mapped from there: the system's page cache is
the cache. With other stores an executor has a cache of its own and a steward. *Modes* differ in
where tasks read, never in what is durable:

- ``hybrid``: own cache, then single keys from the executor that has the segment in its cache, then the store: small segments whole, once,
  others by ranges
- ``local``: own cache only; a missing segment is copied there first, whole
- ``remote``: the store by ranges, every time
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from meander.cache.client import GENTLY, Peer, Unreachable
from meander.cache.disk import Cache
from meander.cache.open_segments import OpenSegments
from meander.cache.ranges import SMALL, open_by_ranges, read_whole
from meander.clock import Clock
from meander.processes import parent_of, words_of
from meander.state.hashing import Hashes
from meander.state.parts import encode_part
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment
from meander.state.stores.contract import Store
from meander.task.messages import Lookup, Report

CACHE_BYTES = 8 << 30
_ASK_AGAIN = 2.0
_AT_ONCE = 8
NO_HASHES: Hashes = np.zeros(0, np.uint64)

_EMPTY = Segment("", encode_segment(pl.DataFrame({HASH: np.zeros(0, np.uint64)})))


@dataclass(frozen=True)
class _Question:
    """Rows of these hashes, of these segments, that a peer was asked for."""

    hashes: Hashes
    names: list[str]
    rows: Future[list[pa.Buffer | None]]


class Mapped:
    """Segments of a store that is a folder here."""

    def __init__(self, store: Store, opened: OpenSegments) -> None:
        self._store, self._opened = store, opened

    def scan(self, ref: SegmentRef) -> Segment:
        return self.open(ref, NO_HASHES)

    def open(self, ref: SegmentRef, _: Hashes) -> Segment:
        return self._opened.find(f"{self._store.url}/{ref.name}", ref.name, lambda: self._store.map(ref.name), url=self._store.url)

    def announce(self, lookups: Sequence[Lookup]) -> None:
        """Nothing to do: all is here."""

    def expect(self, refs: Sequence[SegmentRef], hashes: Hashes) -> None:
        """Nothing to do: all is here."""

    def wrote(self, name: str, data: pa.Buffer) -> None:
        """Nothing to do: it is where it will be read."""


class Remote:
    """No cache at all: for comparison, and for executors without a disk."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store, self._report = store, report
        self._task: dict[str, Segment] = {}

    def scan(self, ref: SegmentRef) -> Segment:
        return self.open(ref, NO_HASHES)

    def open(self, ref: SegmentRef, _: Hashes) -> Segment:
        if ref.name not in self._task:
            self._task[ref.name] = open_by_ranges(Counting(self._store, self._report), ref.name, ref.bytes)
        return self._task[ref.name]

    def announce(self, lookups: Sequence[Lookup]) -> None:
        """Nothing to do: ranges are read one by one."""

    def expect(self, refs: Sequence[SegmentRef], hashes: Hashes) -> None:
        """Nothing to do: ranges are read one by one."""

    def wrote(self, name: str, data: pa.Buffer) -> None:
        """It is in the store."""


@dataclass(frozen=True)
class Owned:
    """The key groups that a task reads, and where segments are beside the store."""

    groups: int
    """As bits."""
    key_groups: int
    holders: Mapping[str, str] = field(default_factory=dict)
    """Segments that are in some executor's cache: the address of its steward."""
    secret: str = ""
    """The secret that stewards of this run share."""
    whole: bool = False
    """Whether what is not in the cache is copied there first (mode ``local``)."""


class Cached:
    """An executor's cache before the store."""

    def __init__(self, store: Store, cache: Cache, owned: Owned, *, opened: OpenSegments, report: Report) -> None:
        self._store, self._cache, self._opened, self._report = store, cache, opened, report
        self._groups, self._key_groups, self._is_local = owned.groups, owned.key_groups, owned.whole
        self._holders, self._secret = owned.holders, owned.secret
        self._task: dict[str, Segment] = {}
        self._here: dict[str, Segment] = {}
        """Those that this task has found in the cache: it asks for each several times, and a look counts."""
        self._expected: dict[str, tuple[Hashes, Segment]] = {}
        self._coming: dict[str, _Question] = {}

    def announce(self, lookups: Sequence[Lookup]) -> None:
        """Ask peers for all that operators will look up one after the other: they look for the next one's rows while we work on one's."""
        if self._is_local or len(lookups) < 2:
            return
        for refs, hashes in lookups:
            away: dict[str, list[str]] = {}
            for ref in refs:
                holder, groups = self._holders.get(ref.name), ref.groups & self._groups
                if holder is not None and groups and self._own(ref.name, groups) is None:
                    away.setdefault(holder, []).append(ref.name)
            wanted = hashes() if away else NO_HASHES
            for holder, names in away.items():
                question = _Question(wanted, names, self._opened.pool.submit(Peer.at(holder, self._secret).rows, names, wanted))
                self._coming.update(dict.fromkeys(names, question))

    def expect(self, refs: Sequence[SegmentRef], hashes: Hashes) -> None:
        """Keys of segments that are not here are asked for at once: one question to each who has some, and not one per segment.

        Small segments that are in no cache are fetched whole, some at a time: an executor that
        starts far from its store has hundreds to read.
        """
        away: dict[str, list[str]] = {}
        stored: list[SegmentRef] = []
        for ref in refs:
            holder = self._holders.get(ref.name)
            groups = ref.groups & self._groups
            if self._is_local or not groups or self._own(ref.name, groups) is not None:
                continue
            if holder is not None:
                away.setdefault(holder, []).append(ref.name)
                if self._opened.asks_again(ref.name):
                    self._bring_later(ref, groups, holder, GENTLY)
            elif ref.bytes <= SMALL:
                stored.append(ref)
        if len(stored) > 1:
            with ThreadPoolExecutor(min(_AT_ONCE, len(stored))) as readers:
                wanted = [(ref, readers.submit(read_whole, self._store, ref.name, ref.bytes)) for ref in stored]
            for ref, read in wanted:
                self._keep_whole(ref, read.result())
        for holder, names in away.items():
            asked = self._coming.get(names[0])
            if asked is not None and asked.names == names and _has_all(asked.hashes, hashes):
                for name in names:
                    del self._coming[name]
                self._came(asked.hashes, names, self._heard(asked.rows.result, len(names)))
            else:
                self._came(hashes, names, self._heard(partial(Peer.at(holder, self._secret).rows, names, hashes), len(names)))

    def scan(self, ref: SegmentRef) -> Segment:
        """All of its rows in our key groups; missing parts are copied first."""
        groups = ref.groups & self._groups
        cached = self._own(ref.name, groups)
        return self._copy(ref, groups) if cached is None else cached

    def open(self, ref: SegmentRef, hashes: Hashes) -> Segment:
        if ref.name in self._expected:
            asked, segment = self._expected[ref.name]
            if _has_all(asked, hashes):
                return segment
            del self._expected[ref.name]
        groups = ref.groups & self._groups
        cached = self._own(ref.name, groups)
        if cached is not None:
            self._report.count("cache_hits", 1)
            return cached
        if self._is_local:
            return self._copy(ref, groups)
        self.expect([ref], hashes)
        if ref.name in self._expected:
            return self._expected[ref.name][1]
        if ref.bytes <= SMALL:
            return self._keep_whole(ref, read_whole(self._store, ref.name, ref.bytes))
        if ref.name not in self._task:
            self._bring_later(ref, groups, None, 1.0)
            self._task[ref.name] = open_by_ranges(Counting(self._store, self._report), ref.name, ref.bytes)
        return self._task[ref.name]

    def wrote(self, name: str, data: pa.Buffer) -> None:
        self._cache.add(name, data)

    def _keep_whole(self, ref: SegmentRef, data: bytes) -> Segment:
        """A segment as it came from the store: into the cache, so that it is read once, whichever of its keys come next."""
        self._report.count("fetched_from_store", len(data))
        self._cache.add(ref.name, data)
        kept = self._cache.whole(ref.name)  # mapped, so that the process need not hold it; None where it had to make room already
        return self._opened.put(f"{self._cache.folder}/{ref.name}", Segment(ref.name, pa.py_buffer(data) if kept is None else kept))

    def _bring_later(self, ref: SegmentRef, groups: int, holder: str | None, share: float) -> None:
        """Have our own steward fetch it, so that the next epochs need not read it from afar again.

        No cache has it, or this worker has read it from another executor for many epochs: the
        steward that should have fetched it did not, or died while fetching.
        """
        if self._report.steward is None or (holder is None and self._opened.was_ordered(ref.name, groups)):
            return
        self._opened.ordered(ref.name, groups)
        with contextlib.suppress(Unreachable):
            Peer.at(self._report.steward, self._secret).fetch([[ref.name, ref.bytes, f"{groups:x}", holder]], share)

    def _own(self, name: str, groups: int) -> Segment | None:
        """A segment as far as our key groups of it go, where it is in the cache."""
        found = self._here.get(name) or self._look(name, groups)
        if found is not None:
            self._here[name] = found
        return found

    def _look(self, name: str, groups: int) -> Segment | None:
        whole, part = f"{self._cache.folder}/{name}", f"{self._cache.folder}/{name}@{groups:x}"
        for key in (whole, part):
            if (segment := self._opened.get(key)) is not None:
                return segment
        if (data := self._cache.whole(name)) is not None:
            return self._opened.put(whole, Segment(name, data))
        found = self._cache.segment(name, groups, self._key_groups)
        return None if found is None else self._opened.put(part, found)

    def _came(self, asked: Hashes, names: Sequence[str], found: Sequence[pa.Buffer | None]) -> None:
        for name, data in zip(names, found, strict=True):
            if data is not None:
                self._expected[name] = (asked, Segment(name, data) if data.size else _EMPTY)

    def _heard(self, answer: Callable[[], list[pa.Buffer | None]], segments: int) -> list[pa.Buffer | None]:
        try:
            found = answer()
        except Unreachable:
            return [None] * segments
        self._report.count("fetched_from_peers", sum(data.size for data in found if data is not None))
        return found

    def _copy(self, ref: SegmentRef, groups: int) -> Segment:
        data, holder = None, self._holders.get(ref.name)
        if holder is not None:
            with contextlib.suppress(Unreachable):
                data = Peer.at(holder, self._secret).part(ref.name, groups)
        if data is not None:
            self._report.count("fetched_from_peers", data.size)
        elif ref.bytes <= SMALL:
            return self._keep_whole(ref, read_whole(self._store, ref.name, ref.bytes))
        else:
            segment = open_by_ranges(Counting(self._store, self._report), ref.name, ref.bytes)
            data = encode_part(segment, groups, self._key_groups)
        self._cache.add_part(ref.name, groups, data)
        return Segment(ref.name, data)


def _has_all(asked: Hashes, hashes: Hashes) -> bool:
    """Whether an answer to a question about some hashes, ascending, is one about these too."""
    if len(asked) == 0:
        return len(hashes) == 0
    at = np.minimum(np.searchsorted(asked, hashes), len(asked) - 1)
    return bool((asked[at] == hashes).all())


class Counting:
    """A store that counts in a task's report what is read from it."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store, self._report, self.url = store, report, store.url

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        data = self._store.get_range(name, start, length)
        self._report.count("fetched_from_store", 0 if data is None else len(data))
        return data


# -- this executor's steward -----------------------------------------------------------------------------------------


class ExecutorCache:
    """This executor's cache and the address of its steward, once there is one."""

    def __init__(self, store: str, secret: str, key_groups: int, *, clock: Clock) -> None:
        root = Path((os.environ.get("SPARK_LOCAL_DIRS") or "/tmp").split(",")[0])
        self.folder = root / f"meander-{sha256(f'{store} {secret}'.encode()).hexdigest()[:16]}"
        self.cache = Cache(self.folder / "cache")
        self._clock = clock
        self._process = _executor_process()
        self.executor = _executor_id(self._process)
        self._orders = {"store": store, "secret": secret, "key_groups": key_groups, "limit": CACHE_BYTES}
        self._address: str | None = None
        self._asked = 0.0

    def address(self) -> str | None:
        """Where its steward listens; None while there is none. Starts one where there is none, and never waits for it."""
        now = self._clock.monotonic()
        if self._process is None or (self._asked and now - self._asked < _ASK_AGAIN):
            return self._address
        self._asked = now
        if not self._start():
            with contextlib.suppress(OSError, ValueError):
                self._address = json.loads((self.folder / "steward.json").read_text())["address"]
        return self._address

    def wait_for_steward(self, patience: float) -> str | None:
        """The same, waiting for one that is being started."""
        deadline = self._clock.monotonic() + patience
        while self.address() is None and self._process is not None and self._clock.monotonic() < deadline:
            self._asked = 0.0
            self._clock.sleep(0.05)
        return self._address

    def _start(self) -> bool:
        """The worker that gets the lock starts the steward, and the steward inherits the lock:
        while it lives no other is started."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        host = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "meander.cache.steward", str(self.folder)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True, pass_fds=(lock,)
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({**self._orders, "host": host, "executor": self._process}).encode() + b"\n")
        process.stdin.close()
        os.close(lock)
        return True


def this_executor() -> str | None:
    """The id of the executor that this worker belongs to; None where the system does not tell."""
    found = _executor_id(_executor_process())
    return None if found == "driver" else found


def _executor_id(process: int | None) -> str:
    """The id that Spark knows an executor by: its command line has it. A local executor is the driver."""
    words = [] if process is None else words_of(process)
    return words[words.index("--executor-id") + 1] if "--executor-id" in words else "driver"


def _executor_process() -> int | None:
    """The process of this worker's executor: the worker's parent is PySpark's daemon, and the
    daemon's parent is the executor. None where the system does not tell. Then there is no steward,
    since it could not end with its executor, and segments that are not in the cache are read from
    the store."""
    return parent_of(os.getppid())
