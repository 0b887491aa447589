"""Segments read from a store: small ones whole, others by byte ranges, the footer first, then the blocks that are asked for."""

from __future__ import annotations

import io
from typing import Any, Protocol

import pyarrow as pa

from meander.errors import Corrupted
from meander.state.segment import Segment

_TAIL = 64 << 10
SMALL = 2 << 20
"""Bytes of a segment that one call may bring: its footer and a block or two, each with a call of its own, take as long."""


class Ranged(Protocol):
    """The part of a store that this needs."""

    url: str

    def get_range(self, name: str, start: int, length: int) -> bytes | None: ...


def read_whole(store: Ranged, name: str, size: int) -> bytes:
    """A segment's bytes, in one call."""
    return _RangeFile(store, name, size).whole()


def open_by_ranges(store: Ranged, name: str, size: int) -> Segment:
    """A segment whose blocks are read when they are needed."""
    return Segment(name, pa.PythonFile(_RangeFile(store, name, size), mode="r"))


class _RangeFile(io.RawIOBase):
    """A name of a store as a file. Its end is read once: that is where a segment's index is."""

    def __init__(self, store: Ranged, name: str, size: int) -> None:
        self._store, self._name, self._size, self._at = store, name, size, 0
        self._tail_at = max(0, size - _TAIL)
        self._tail: bytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._at if size < 0 else min(size, self._size - self._at)
        if wanted <= 0:
            return b""
        if self._at >= self._tail_at:
            if self._tail is None:
                self._tail = self._get(self._tail_at, self._size - self._tail_at)
            data = self._tail[self._at - self._tail_at : self._at - self._tail_at + wanted]
        else:
            data = self._get(self._at, wanted)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def whole(self) -> bytes:
        return self._get(0, self._size)

    def _get(self, start: int, length: int) -> bytes:
        data = self._store.get_range(self._name, start, length)
        if data is None or len(data) < length:
            raise Corrupted(f"segment '{self._name}' is named by the manifest but is not whole in store {self._store.url}")
        return data
