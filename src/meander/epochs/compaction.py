"""Compaction beside the epochs: a helper process of the driver, of low priority, that merges segments while epochs run.

Of the driver's own session: Linux may weigh sessions before it looks at priorities, and in one of its own it would count as much as all
of the driver's processes together. And not of the lowest priority: beside other load merges then fell behind (44 runs per slot at ten
million keys, 24 with this one).

It shares nothing with the epochs but the store: it reads immutable segments and writes a new one; only the driver's log entry makes
that one count. A helper that dies costs its merge and is started again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from meander.clock import Clock
from meander.coordinate.routing import groups_of
from meander.state.compaction import Merge, choose_merge
from meander.state.manifest import Json, Manifest, kept_floor, operator_of
from meander.state.segment import SegmentRef

AT_ONCE = 16
"""Merges that one who merges is given at most before it has answered: every operator adds a segment per epoch, so one merge per epoch would
not do for more than a few."""
_PIPE = 32 << 10
"""The most bytes of orders in a helper's pipe: with more the loop would have to wait for a
merge."""
MOST_EPOCHS = 1000
"""The most epochs that a merge may take among replicas. These are minutes, and a merge takes
seconds: a merge that takes longer was begun by a replica that died."""


class Compactor(Protocol):
    """Chooses and performs merges."""

    def consider(self, manifest: Manifest, routing: Mapping[str, list[int]], slots: Mapping[str, int]) -> None:
        """Begin the merges that are due, as many as can be under way."""

    def collect(self) -> Json | None:
        """A finished merge, or None."""

    @property
    def busy(self) -> bool:
        """Whether a merge is under way, or done and not collected."""

    def close(self) -> None: ...


def due_merges(manifest: Manifest, routing: Mapping[str, list[int]], slots: Mapping[str, int]) -> list[tuple[Merge, str, int]]:
    """All merges that are due, with their operator and slot; the one that shortens the longest list of runs first."""
    found: list[tuple[int, Merge, str, int]] = []
    for name, table in manifest.tables.items():
        operator = operator_of(name)
        if operator not in routing:
            continue
        for slot in range(slots[operator]):
            groups = groups_of(routing[operator], slot)
            alive = table.alive_for(groups)
            merge = choose_merge(name, table.keys, alive, groups, table.time, kept_floor(name, table.floor, manifest.plan))
            if merge is not None:
                found.append((len(alive), merge, operator, slot))
    return [(merge, operator, slot) for _, merge, operator, slot in sorted(found, key=lambda due: -due[0])]


def apart(due: Iterable[tuple[Merge, str, int]], busy: Iterable[str]) -> Iterator[tuple[Merge, str, int]]:
    """Those of the merges that share no segment with one that is under way, or with each other.

    Two merges of one segment could overlap in key groups after a rescale, and give a row twice.
    """
    taken = set(busy)
    for merge, operator, slot in due:
        names = {ref.name for ref in merge.inputs}
        if not names & taken:
            taken |= names
            yield merge, operator, slot


def finished_merge(merge: Merge, name: str, rows: int, size: int, ends: Sequence[int] = ()) -> Json:
    """A merge that is done, as the log will have it. ``ends``: when the rows of its output end, where they do."""
    newest = max(ref.sequence for ref in merge.inputs)
    read = 0
    for ref in merge.inputs:
        read |= ref.groups & merge.groups
    output = SegmentRef(name, rows, size, newest, read, tuple(ends))  # it has rows of no other key group
    return {
        "table": merge.table,
        "inputs": [ref.name for ref in merge.inputs],
        "output": output.to_json(),
        "read": {ref.name: f"{ref.groups & merge.groups:x}" for ref in merge.inputs},
        **({} if merge.time is None else {"ends": {ref.name: ref.last_end for ref in merge.inputs}}),
    }


def merge_entry(merges: Iterable[Json]) -> Json:
    """The log entry of finished merges, which must have no input in common."""
    entries: list[Json] = [{part: merge[part] for part in ("table", "inputs", "output", "ends") if part in merge} for merge in merges]
    return {"kind": "compaction", **entries[0]} if len(entries) == 1 else {"kind": "compactions", "merges": entries}


def is_overdue(output: str, manifest: Manifest) -> bool:
    """Whether a replica's merge output can no longer become state: its name shows that it was begun
    too many epochs ago.

    The merging replica calls this before it appends the entry, and a starting replica before it
    removes unnamed objects. Both decide by the log: no replica can append the entry of a merge
    whose output another one has removed.
    """
    return manifest.shared and int(output.rsplit("/", 1)[1].split("-")[1]) < manifest.epoch - MOST_EPOCHS


def still_holds(merge: Json, manifest: Manifest) -> bool:
    """Whether the manifest still has the input of a merge: nothing of it was dropped, or merged by
    another replica, and the merge is not overdue.

    Input that was removed because it had ended does not matter: readers skip its rows.
    """
    if is_overdue(merge["output"][0], manifest):
        return False
    table = manifest.tables.get(merge["table"])
    if table is None:
        return False
    groups = SegmentRef.from_json(merge["output"]).groups
    there = {segment.name: segment.groups & groups for segment in table.segments}
    over = {name for name, end in merge.get("ends", {}).items() if name not in there and end <= table.floor}
    return len(over) < len(merge["read"]) and all(
        there.get(name, 0) == int(read, 16) for name, read in merge["read"].items() if name not in over
    )


class ProcessCompactor:
    """The helper process."""

    def __init__(self, store_url: str, clock: Clock, generation: int, key_groups: int) -> None:
        self._request = (store_url, generation, key_groups)
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._under_way: deque[tuple[Merge, int]] = deque()
        """In the order in which they will be answered, with the bytes of their orders."""

    def consider(self, manifest: Manifest, routing: Mapping[str, list[int]], slots: Mapping[str, int]) -> None:
        if len(self._under_way) == AT_ONCE:
            return
        store, generation, key_groups = self._request
        busy = (ref.name for merge, _ in self._under_way for ref in merge.inputs)
        for merge, _, _ in apart(due_merges(manifest, routing, slots), busy):
            name = f"segments/{merge.table}/{generation:08d}-{manifest.epoch:010d}-merge-{self._clock.new_id()}.arrow"
            order = pickle.dumps((store, key_groups, merge, name))
            if self._under_way and len(order) + sum(size for _, size in self._under_way) > _PIPE:
                return
            try:
                _send(self._helper(), order)
            except OSError:  # it died: the merges are chosen again, with a new helper
                self.close()
                return
            self._under_way.append((merge, len(order)))
            if len(self._under_way) == AT_ONCE:
                return

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def collect(self) -> Json | None:
        process = self._process
        if not self._under_way or process is None or process.stdout is None:
            return None
        while self._under_way and select.select([process.stdout.fileno()], [], [], 0)[0]:
            answer = _received(process.stdout.fileno())
            if answer is None:  # it is dead, and its other merges with it
                self.close()
                return None
            (merge, _), done = self._under_way.popleft(), answer[0]
            if done is not None:
                return finished_merge(merge, *done)
        return None

    def close(self) -> None:
        self._under_way.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process = None

    def _helper(self) -> Any:
        if self._process is None:
            environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "meander.epochs.compaction_helper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                process_group=0,  # Ctrl-C in a terminal is for the driver
            )
        return self._process.stdin


def _write(pipe: Any, message: Any) -> None:
    _send(pipe, pickle.dumps(message))


def _send(pipe: Any, data: bytes) -> None:
    pipe.write(struct.pack(">Q", len(data)) + data)
    pipe.flush()


def _received(pipe: int) -> Any:
    """One message, and no byte of the next: ``select`` would not see bytes in a buffer here. None
    where the pipe has ended."""

    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size and (more := os.read(pipe, size - len(data))):
            data += more
        return data

    header = exactly(8)
    if len(header) < 8:
        return None
    data = exactly(size := struct.unpack(">Q", header)[0])
    return pickle.loads(data) if len(data) == size else None


def _read(pipe: Any) -> Any:
    header = pipe.read(8)
    if len(header) < 8:
        return None
    return pickle.loads(pipe.read(struct.unpack(">Q", header)[0]))
