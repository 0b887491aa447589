"""The steward: two helper processes beside each executor. They answer for the executor's cache.

At the *foreground*, of normal priority, since an epoch is waiting:

- ``rows``: some segments' rows of some hashes. How a new owner fetches single keys from the one before it.

In the *background*, of low priority, since it must not take the cores from the epochs:

- ``part``: a segment's rows of some key groups. How a new owner fetches all there is to move.
- ``fetch``: bring parts of segments into this cache, from another steward or from the store, in the background; ``fetched`` says how far.
- ``drop``: segments that the driver has collected leave this cache.
- ``merge``: compact segments of this executor's slots, in the background; ``merged`` gives what is done.

Everything is an action of Arrow Flight: a JSON header and bytes, in both directions. Callers without the run's secret are refused. A
steward ends when its executor does. It shares nothing with the epochs but files that never change, so that it may die at any moment. Two
processes, and not two threads: with one GIL a reply would wait for a low-priority thread.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute  # otherwise the first question would wait for it
from pyarrow import flight

from meander.cache.client import Peer, Unreachable, background_of, join, padded, split
from meander.cache.disk import Cache
from meander.cache.ranges import SMALL, open_by_ranges, read_whole
from meander.clock import Clock, SystemClock
from meander.processes import born
from meander.state.compaction import Merge, run_merge
from meander.state.parts import encode_part, pieces_of
from meander.state.segment import Segment, SegmentRef, encode_batch, ends_of, rows_of_hashes
from meander.state.stores.contract import Store, open_store

_OPEN = 256
_GONE = 10_000
_WATCH_EVERY = 0.5
_EVICT_EVERY = 5.0
_PIECE = 8 << 20
_LONGEST_REST = 1.0


class _Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets in who knows the secret."""

    def __init__(self, secret: str) -> None:
        self._expected = f"Bearer {secret}"

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        if headers.get("authorization") != [self._expected]:
            raise flight.FlightUnauthenticatedError("this steward belongs to a run, and you do not know its secret")


class Steward(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, host: str, secret: str, cache: Cache, store: Store, key_groups: int) -> None:
        super().__init__(f"grpc://{host}:0", middleware={"door": _Door(secret)})
        self.address = f"{host}:{self.port}"
        self._secret, self._cache, self._store, self._key_groups = secret, cache, store, key_groups
        self._opened: OrderedDict[str, Segment] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._fetching = ThreadPoolExecutor(2, thread_name_prefix="fetch")
        self._merging = ThreadPoolExecutor(1, thread_name_prefix="merge")
        self._pending: list[Future[None]] = []
        self._merged: list[Any] = []
        self._bytes = {"peer": 0, "store": 0}
        self._failures: list[str] = []

    # -- the door ---------------------------------------------------------------------------------------------------

    def do_action(self, context: Any, action: Any) -> Iterator[bytes | pa.Buffer]:
        header, body = split(action.body.to_pybytes())
        answer, data = getattr(self, f"_{action.type}")(header, body)
        yield from join(answer, data)

    def _rows(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
        hashes = np.frombuffer(body, np.uint64)
        sizes: list[int | None] = []
        out = pa.BufferOutputStream()
        for name in header["names"]:
            segment = self._segment(name)
            if segment is None:
                sizes.append(None)
                continue
            rows = rows_of_hashes(segment, hashes)
            data = encode_batch(rows) if rows is not None else pa.py_buffer(b"")
            sizes.append(data.size)
            out.write(data)
            out.write(bytes(padded(data.size) - data.size))
        return {"sizes": sizes}, out.getvalue()

    def _part(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
        segment = self._segment(header["name"])
        if segment is None:
            return {"missing": True}, b""
        return {}, encode_part(segment, int(header["groups"], 16), self._key_groups)

    def _fetch(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
        for name, size, groups, holder in header["items"]:
            self._pending.append(self._fetching.submit(self._bring, name, size, int(groups, 16), holder, header["share"]))
        return {}, b""

    def _fetched(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
        self._pending = [future for future in self._pending if not future.done()]
        failures, self._failures = self._failures, []
        return {"pending": len(self._pending), **self._bytes, "failures": failures}, b""

    def _drop(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
        for name in header["names"]:
            with self._lock:
                self._opened.pop(name, None)
                self._gone[name] = None
                while len(self._gone) > _GONE:
                    self._gone.popitem(last=False)
            self._cache.drop(name)
        return {}, b""

    def _merge(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
        inputs = tuple(SegmentRef.from_json(fields) for fields in header["inputs"])
        known = (header["table"], tuple(header["keys"]), inputs, int(header["groups"], 16))
        merge = Merge(*known, header["bottom"], header["time"], header["floor"])
        self._merging.submit(self._compact, merge, header["name"], header["holders"])
        return {}, b""

    def _merged_(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
        with self._lock:
            done, self._merged = self._merged, []
        return {"done": done}, b""

    # -- the work ---------------------------------------------------------------------------------------------------

    def close_dropped(self) -> None:
        """Let go of segments that left the cache: as long as they are mapped, they take room on the disk."""
        with self._lock:
            for name in [name for name in self._opened if not self._cache.has(name)]:
                del self._opened[name]

    def _segment(self, name: str) -> Segment | None:
        with self._lock:
            if name in self._opened:
                self._opened.move_to_end(name)
                return self._opened[name]
        data = self._cache.whole(name)
        if data is None:
            return None
        segment = Segment(name, data)
        with self._lock:
            self._opened[name] = segment
            while len(self._opened) > _OPEN:
                self._opened.popitem(last=False)
        return segment

    def _bring(self, name: str, size: int, groups: int, holder: str | None, share: float = 1.0) -> None:
        """Fetch one part into the cache: missing bytes come from another executor or from the
        store, little by little, with pauses."""
        try:
            pace, stored = Pace(share), None
            for piece in pieces_of(self._cache.missing(name, groups), -(-size // _PIECE)):
                data = None if stored is not None else self._from_peer(name, piece, holder)
                if data is None and size <= SMALL:
                    self._cache.add(name, read_whole(_Counted(self._store, self._bytes), name, size))
                    self._forget_if_gone(name)
                    return
                if data is None:
                    stored = stored or open_by_ranges(_Counted(self._store, self._bytes), name, size)
                    data = encode_part(stored, piece, self._key_groups)
                self._cache.add_part(name, piece, data)
                if self._forget_if_gone(name):
                    return
                pace.rest()
        except Exception as error:  # epochs do not depend on it: they fetch what they need themselves
            self._failures.append(f"{name}: {type(error).__name__}: {error}")

    def _forget_if_gone(self, name: str) -> bool:
        """Drop a segment that was removed from the store while it was fetched: its removal is
        announced only once."""
        if name in self._gone:
            self._cache.drop(name)
        return name in self._gone

    def _from_peer(self, name: str, groups: int, holder: str | None) -> pa.Buffer | None:
        if holder is None or background_of(holder) == self.address:
            return None
        try:
            data = Peer.at(holder, self._secret).part(name, groups)
        except Unreachable:
            return None
        self._bytes["peer"] += 0 if data is None else data.size
        return data

    def _compact(self, merge: Merge, name: str, holders: dict[str, str]) -> None:
        answer: Any = None
        try:
            for ref in merge.inputs:
                self._bring(ref.name, ref.bytes, ref.groups & merge.groups, holders.get(ref.name))

            def open_segment(ref: SegmentRef) -> Segment:
                cached = self._cache.segment(ref.name, ref.groups & merge.groups, self._key_groups)
                return cached or open_by_ranges(self._store, ref.name, ref.bytes)

            data, rows = run_merge(merge, open_segment, self._key_groups)
            if rows:
                self._store.put(name, data)
                self._cache.add(name, data)
            answer = [name, rows, data.size, ends_of(data)]
        except Exception as error:  # chosen again later
            self._failures.append(f"merge of {merge.table}: {type(error).__name__}: {error}")
        with self._lock:
            self._merged.append([merge.table, [ref.name for ref in merge.inputs], answer])


class _Counted:
    """A store that counts what is read from it."""

    def __init__(self, store: Store, counts: dict[str, int]) -> None:
        self._store, self._counts, self.url = store, counts, store.url

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        data = self._store.get_range(name, start, length)
        self._counts["store"] += 0 if data is None else len(data)
        return data


class Pace:
    """Leaves the cores to the epochs: a thread that rests here after every piece of work uses a
    share of the time.

    The busier the machine, the longer a piece takes, and the longer the rest is.
    """

    def __init__(self, share: float, clock: Clock | None = None) -> None:
        self._rest, self._clock = 1 / share - 1, clock or SystemClock()
        self._since = self._clock.monotonic()

    def rest(self) -> None:
        worked = self._clock.monotonic() - self._since
        if self._rest > 0:
            self._clock.sleep(min(_LONGEST_REST, worked * self._rest))
        self._since = self._clock.monotonic()


def main() -> None:
    """Serve until the executor is gone. Called with a folder; the rest comes on standard input, the secret among it."""
    folder = Path(sys.argv[1])
    orders = json.loads(sys.stdin.readline())
    if len(sys.argv) > 2:
        _work_in_background(folder, orders)
    else:
        _serve_in_foreground(folder, orders)
    os._exit(0)  # gRPC's threads would keep the process


def _serve_in_foreground(folder: Path, orders: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "meander.cache.steward", str(folder), "background"]
    background = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert background.stdin is not None
    assert background.stdout is not None
    background.stdin.write(json.dumps({**orders, "foreground": os.getpid()}).encode() + b"\n")
    background.stdin.close()
    steward = _open(folder, orders)
    port = background.stdout.readline().decode().strip()
    if port:
        staged = folder / ".steward.json"
        staged.write_text(json.dumps({"address": f"{steward.address}/{port}", "process": os.getpid()}))
        os.replace(staged, folder / "steward.json")
    clock, is_alive = SystemClock(), _watch(orders["executor"])
    while is_alive() and background.poll() is None:
        clock.sleep(_WATCH_EVERY)
        steward.close_dropped()
    if not is_alive():
        shutil.rmtree(folder, ignore_errors=True)


def _work_in_background(folder: Path, orders: dict[str, Any]) -> None:
    os.nice(10)
    steward = _open(folder, orders)
    sys.stdout.write(f"{steward.port}\n")
    sys.stdout.flush()
    clock = SystemClock()
    is_alive, evicted = _watch(orders["executor"]), clock.monotonic()
    while is_alive() and os.getppid() == orders["foreground"]:
        clock.sleep(_WATCH_EVERY)
        if clock.monotonic() - evicted > _EVICT_EVERY:
            steward._cache.evict(orders["limit"])
            evicted = clock.monotonic()


def _open(folder: Path, orders: dict[str, Any]) -> Steward:
    return Steward(orders["host"], orders["secret"], Cache(folder / "cache"), open_store(orders["store"]), orders["key_groups"])


def _watch(process: int) -> Callable[[], bool]:
    """Whether a process is still there: the same one, and not another of its number."""
    began = born(process)
    return lambda: began != "" and born(process) == began


if __name__ == "__main__":
    main()
