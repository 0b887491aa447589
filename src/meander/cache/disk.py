"""An executor's cache: whole segments and parts of some, as files that are mapped. Immutable, so that nothing is ever stale in it.

Shared by the Python workers of an executor and its steward. A worker adds what it writes, the steward what it fetches or merges. Losing
it costs time and nothing else: whatever is here is in the store.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from meander.clock import SystemClock
from meander.state.parts import Joined
from meander.state.segment import Segment

_CLOCK = SystemClock()
_LARGE = 1 << 20
_SYNCED = 8 << 20


class Cache:
    """A folder of segments by name. A *part* is a segment's rows of some key groups, in a file of its own."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        for kind in ("whole", "parts"):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)

    def whole(self, name: str) -> pa.Buffer | None:
        return _map(self._whole(name))

    def has(self, name: str) -> bool:
        """Whether the whole of a segment is here."""
        return self._whole(name).exists()

    def segment(self, name: str, groups: int, key_groups: int) -> Segment | None:
        """A segment, as far as some key groups of it go: the whole one, or parts that have them all. None where some are not here."""
        whole = self.whole(name)
        if whole is not None:
            return Segment(name, whole)
        parts: list[tuple[int, Segment]] = []
        for there in self._there(name):
            taken = there & groups
            data = _map(self._parts(name) / f"{there:x}") if taken else None
            if data is not None:
                parts.append((taken, Segment(name, data)))
                groups &= ~taken
            if groups == 0 and parts:
                return parts[0][1] if len(parts) == 1 else Joined(name, parts, key_groups)
        return None

    def missing(self, name: str, groups: int) -> int:
        """Those of some key groups that are not here."""
        if self.has(name):
            return 0
        for there in self._there(name):
            groups &= ~there
        return groups

    def add(self, name: str, data: bytes | pa.Buffer) -> None:
        _write(self._whole(name), data)

    def add_part(self, name: str, groups: int, data: bytes | pa.Buffer) -> None:
        folder = self._parts(name)
        folder.mkdir(exist_ok=True)
        _write(folder / f"{groups:x}", data)

    def _there(self, name: str) -> list[int]:
        """The parts of a segment: the key groups of each, those with most of them first."""
        try:
            there = [int(entry, 16) for entry in os.listdir(self._parts(name)) if not entry.startswith(".")]
        except FileNotFoundError:
            return []
        return sorted(there, key=lambda groups: (-groups.bit_count(), groups))

    def drop(self, name: str) -> None:
        """Remove a segment that is not needed any more, with its parts. Processes that have it
        mapped can still read it."""
        self._whole(name).unlink(missing_ok=True)
        shutil.rmtree(self._parts(name), ignore_errors=True)

    def evict(self, limit: int) -> int:
        """Remove what was not used for longest until the rest is within the limit: how many bytes went. The steward's work."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        found = []
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
        excess = sum(size for _, size, _ in found) - limit
        gone = 0
        for _, size, path in sorted(found):
            if gone >= excess:
                break
            path.unlink(missing_ok=True)
            gone += size
        return gone

    def _whole(self, name: str) -> Path:
        return self.folder / "whole" / quote(name, safe="")

    def _parts(self, name: str) -> Path:
        return self.folder / "parts" / quote(name, safe="")


def _map(path: Path) -> pa.Buffer | None:
    try:
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()
    except FileNotFoundError:
        return None


def _write(path: Path, data: bytes | pa.Buffer) -> None:
    """Appear whole or not at all. Not safe against power loss, since a cache may be lost.

    Large files are synced all the same, a piece at a time. Otherwise the system would write a
    gigabyte at once half a minute later, and any small sync would wait for all of it.
    """
    staged = path.with_name(f".{_CLOCK.new_id()}")
    view = memoryview(data)
    with open(staged, "wb", buffering=0) as out:
        while len(view):
            view = view[out.write(view[:_SYNCED]) :]
            if len(data) > _LARGE:
                os.fdatasync(out.fileno())
    os.replace(staged, path)
