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

_CLOCK = SystemClock()


class Cache:
    """A folder of segments by name. A *part* is a segment's rows of some key groups, in a file of its own."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        for kind in ("whole", "parts"):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)

    def whole(self, name: str) -> pa.Buffer | None:
        return _map(self._whole(name))

    def part(self, name: str, groups: int) -> pa.Buffer | None:
        """A part that has at least these key groups."""
        folder = self._parts(name)
        try:
            there = os.listdir(folder)
        except FileNotFoundError:
            return None
        for entry in there:
            if not entry.startswith(".") and groups & ~int(entry, 16) == 0:
                return _map(folder / entry)
        return None

    def parts(self, name: str) -> list[tuple[int, pa.Buffer]]:
        """All parts of a segment, with the key groups of each."""
        try:
            there = [entry for entry in sorted(os.listdir(self._parts(name))) if not entry.startswith(".")]
        except FileNotFoundError:
            return []
        found = ((int(entry, 16), _map(self._parts(name) / entry)) for entry in there)
        return [(groups, data) for groups, data in found if data is not None]

    def has(self, name: str, groups: int) -> bool:
        return self._whole(name).exists() or self.part(name, groups) is not None

    def add(self, name: str, data: bytes | pa.Buffer) -> None:
        _write(self._whole(name), data)

    def add_part(self, name: str, groups: int, data: bytes | pa.Buffer) -> None:
        folder = self._parts(name)
        folder.mkdir(exist_ok=True)
        _write(folder / f"{groups:x}", data)

    def drop(self, name: str) -> None:
        """A segment that nobody needs any more, with its parts. Who has it mapped keeps what it sees."""
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
    """Appear whole or not at all; no sync, since a cache may be lost."""
    staged = path.with_name(f".{_CLOCK.new_id()}")
    with open(staged, "wb") as out:
        out.write(data)
    os.replace(staged, path)
