"""Finds the files of a folder and cuts them into splits, on the driver: the cursor of the files source.

Guarantees: a file is taken once; (offset, seen) is the cursor's whole place, so that one rebuilt from them goes on exactly there;
cuts depend on the file and on the source's limits only. A file that is taken in part is in the offset, with the row group or
byte where it goes on; a file is in ``seen`` from its last split on.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from meander.connect.source import Choice, Split
from meander.errors import Corrupted, Retryable

SPLIT_ROWS = 1_000_000
SPLIT_BYTES = 64 << 20
# With no limit set an epoch is bounded all the same: the backlog of a year must not become one epoch.
DEFAULT_BYTES_PER_EPOCH = 256 << 20
_SAMPLE = 64 << 10
# A folder's mtime has the resolution of a clock tick or worse: one that is this young may hide a file that came after the look.
_MTIME_TRUST = 2.0


@dataclass(frozen=True)
class Limits:
    """What one epoch takes at most; at least one split is always taken."""

    files: int | None = None
    rows: int | None = None
    bytes: int | None = None

    def throttled(self, throttle: float) -> Limits:
        """The limits times ``throttle``; where there is none, the default one, so that a throttle always has an effect."""

        def lower(limit: int | None) -> int | None:
            return None if limit is None else max(1, int(limit * throttle))

        unlimited = self.files is self.rows is self.bytes is None
        return Limits(lower(self.files), lower(self.rows), lower(DEFAULT_BYTES_PER_EPOCH if unlimited else self.bytes))

    def allow(self, rows: int, size: int) -> bool:
        return (self.rows is None or rows <= self.rows) and (self.bytes is None or size <= self.bytes)


class Found(NamedTuple):
    """A file as it was when it was looked at; in the order in which files are taken."""

    mtime_ns: int
    name: str
    size: int


class Piece(NamedTuple):
    """A part of a file: row groups or bytes [first, end)."""

    first: int
    end: int
    rows: int
    bytes: int


class FilesCursor:
    """Which files are taken, and how far into one that is taken in part."""

    def __init__(
        self, folder: str, format: str, limits: Limits, settle: float, partial: dict[str, Any] | None, seen: set[str], throttle: float
    ) -> None:
        self._folder = folder
        self._format = format
        self._cut_by = limits  # cuts must not move with the throttle
        self._limits = limits.throttled(throttle)
        self._settle = settle
        self._partial = partial
        self._seen = set(seen)
        self._waiting: list[Found] = []
        self._looked: int | None = None  # the folder's mtime at the last look
        self._complete = False  # nothing can be there that the last look did not see

    def backlog(self, now: float) -> bool:
        return bool(self._waiting)

    def slow_down(self, share: float) -> None:
        self._limits = self._cut_by.throttled(share)

    def choose(self, now: float, everything: bool) -> Choice | None:
        self._look(now, everything)
        splits: list[Split] = []
        done: list[str] = []
        rows = size = 0
        for found in self._ready(now, everything):
            if splits and self._limits.files is not None and len(done) >= self._limits.files:
                break
            for split in self._cut(found):
                rows, size = rows + split.rows, size + split.bytes
                if splits and not self._limits.allow(rows, size):
                    return self._chosen(splits, done, found, _beginning(split))
                splits.append(split)
            done.append(found.name)
        return self._chosen(splits, done, None, 0) if splits else None

    def finished(self) -> bool:
        """Files can always come."""
        return False

    def _chosen(self, splits: list[Split], done: list[str], partial: Found | None, at: int) -> Choice:
        self._seen.update(done)
        self._waiting = [found for found in self._waiting if found.name not in self._seen]
        self._partial = None
        if partial is not None and at > 0:
            self._partial = {"name": partial.name, "size": partial.size, "mtime_ns": partial.mtime_ns, "next": at}
        return Choice(tuple(splits), {"partial": dict(self._partial)} if self._partial else {}, tuple(done))

    def _look(self, now: float, everything: bool) -> None:
        """Find new files; scan only when the folder may hold some that the last look did not see and there is no backlog."""
        try:
            mtime_ns = os.stat(self._folder).st_mtime_ns
            backlog = any(everything or self._is_settled(file, now) for file in self._waiting)
            if mtime_ns == self._looked and (backlog or (self._complete and not everything)):
                return
            self._waiting = sorted(Found(stat.st_mtime_ns, name, stat.st_size) for name, stat in scan(self._folder, self._seen))
        except OSError as error:
            raise Retryable(f"files {self._folder}: cannot be listed ({error.strerror}); check that the folder is there") from error
        self._looked = mtime_ns
        self._complete = now - mtime_ns / 1e9 > _MTIME_TRUST and all(self._is_settled(file, now) for file in self._waiting)

    def _ready(self, now: float, everything: bool) -> Iterator[Found]:
        """The files that may be taken now as they are now, the half-taken one first."""
        partial = self._partial
        if partial is not None:
            now_there = self._as_it_is(partial["name"])
            if now_there is None or (now_there.size, now_there.mtime_ns) != (partial["size"], partial["mtime_ns"]):
                what = "is gone" if now_there is None else "has changed"
                raise Corrupted(
                    f"{os.path.join(self._folder, partial['name'])} {what} after a part of it was taken; "
                    "put the original back (same content and modification time, cp -p) and start again"
                )
            yield now_there
        for file in self._waiting:
            if (partial is None or file.name != partial["name"]) and (everything or self._is_settled(file, now)):
                # It may have grown or gone while it waited for its turn.
                fresh = self._as_it_is(file.name)
                if fresh is not None and (everything or self._is_settled(fresh, now)):
                    yield fresh

    def _is_settled(self, file: Found, now: float) -> bool:
        return now - file.mtime_ns / 1e9 >= self._settle

    def _as_it_is(self, name: str) -> Found | None:
        try:
            stat = os.stat(os.path.join(self._folder, name))
        except FileNotFoundError:
            return None
        return Found(stat.st_mtime_ns, name, stat.st_size)

    def _cut(self, file: Found) -> Iterator[Split]:
        """The file's splits, from where a part of it was taken."""
        start = int(self._partial["next"]) if self._partial and self._partial["name"] == file.name else 0
        path = os.path.join(self._folder, file.name)
        parquet = self._format == "parquet"
        if parquet:
            pieces = cut_parquet(path, file.size, start, self._cut_by)
        else:
            try:
                pieces = cut_text(path, file.size, start, self._cut_by, header=self._format == "csv")
            except OSError as error:
                raise Retryable(f"{path}: cannot be read ({error.strerror}); check the file's permissions, or move it away") from error
        born = (file.mtime_ns / 1e9, file.mtime_ns / 1e9)
        for first, end, rows, size in pieces:
            payload: dict[str, Any] = {"path": file.name, "size": file.size, "mtime_ns": file.mtime_ns}
            if start > 0 or len(pieces) > 1:
                payload |= {"groups": [first, end]} if parquet else {"start": first, "end": end}
            yield Split(payload, rows, size, born)


def _beginning(split: Split) -> int:
    """Where a split begins in its file: a row group or a byte; 0 for a whole file."""
    groups: list[int] | None = split.payload.get("groups")
    return groups[0] if groups else int(split.payload.get("start", 0))


def scan(folder: str, seen: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """The regular files that are input and not in ``seen``."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name[0] in "._" or entry.name in seen:
                continue
            try:
                if entry.is_file():
                    yield entry.name, entry.stat()
            except FileNotFoundError:
                continue


def cut_parquet(path: str, size: int, start: int, limits: Limits) -> list[Piece]:
    """Row groups from ``start`` on in pieces of about SPLIT_ROWS rows; one piece where the footer cannot be read."""
    try:
        footer = pq.read_metadata(path)
    except Exception:  # whatever is wrong with the file, the task that reads it says so in a dead letter
        return [Piece(0, 0, 0, size)]
    counts = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    aim = min(SPLIT_ROWS, limits.rows or SPLIT_ROWS)
    bounds, rows = [start], 0
    for group in range(start, len(counts)):
        if rows and rows + counts[group] > aim:
            bounds.append(group)
            rows = 0
        rows += counts[group]
    bounds.append(len(counts))
    pieces = []
    for first, end in itertools.pairwise(bounds):
        rows = sum(counts[first:end])
        pieces.append(Piece(first, end, rows, size * rows // max(1, footer.num_rows)))
    return pieces


def cut_text(path: str, size: int, start: int, limits: Limits, header: bool) -> list[Piece]:
    """Byte ranges from ``start`` on of at most SPLIT_BYTES; rows are estimated from the file's first lines, exact if that is all of it."""
    with open(path, "rb") as file:
        sample = file.read(_SAMPLE)
    lines = sample.count(b"\n") + (len(sample) == size and not sample.endswith(b"\n"))
    width = max(1.0, len(sample) / max(1, lines))
    step = min(SPLIT_BYTES, limits.bytes or SPLIT_BYTES)
    if limits.rows is not None:
        step = min(step, int(width * limits.rows))
    step = max(step, _SAMPLE)
    pieces = []
    for first in range(start, max(size, 1), step):
        end = min(first + step, size)
        rows = round((end - first) / width) - (header and first == 0)
        pieces.append(Piece(first, end, max(0, rows) if size else 0, end - first))
    return pieces
