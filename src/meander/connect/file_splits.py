"""Takes the files that ``file_discovery`` finds, oldest first, and cuts them into splits, on the driver: the cursor of the files source.

Guarantees: a file is taken once. (offset, seen) is the cursor's whole position: a cursor rebuilt
from them continues exactly there. Cuts depend only on the file and on the source's limits. The
offset names the file that is taken in part, with the row group or byte where it continues; a file
is in ``seen`` from its last split on. The cost of an epoch grows with the files it takes and with
new files, not with the files that wait.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from meander.connect.file_discovery import Discovery, Found, Grown
from meander.connect.source import Choice, Split
from meander.errors import Corrupted, Retryable
from meander.stored import stored

SPLIT_ROWS = 1_000_000
SPLIT_BYTES = 64 << 20
# With no limit set an epoch is bounded all the same: the backlog of a year must not become one epoch.
DEFAULT_BYTES_PER_EPOCH = 256 << 20
# Where files go that are not needed any more: hidden from every reader of the folder, and on its file system, so that a rename does it.
ARCHIVE = "_archive"
_SAMPLE = 64 << 10


@stored("files_limits")
@dataclass(frozen=True)
class Limits:
    """The most that one epoch takes; at least one split is always taken."""

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


class Piece(NamedTuple):
    """A part of a file: row groups or bytes [first, end)."""

    first: int
    end: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Folder:
    """A folder of files, and how they are taken."""

    path: str
    format: str
    limits: Limits
    settle: float
    """Seconds for which a file must not have changed."""
    archive: bool = False
    """Whether files are put away when they are read."""


class FilesCursor:
    """The files that are taken, and the position inside a file that is taken in part."""

    def __init__(self, folder: Folder, partial: dict[str, Any] | None, seen: set[str], *, throttle: float) -> None:
        self._folder = folder.path
        self._archive = folder.archive
        self._format = folder.format
        self._cut_by = folder.limits  # cuts must not move with the throttle
        self._limits = folder.limits.throttled(throttle)
        self._settle = folder.settle
        self._partial = partial
        self._waiting: list[Found] = []  # a heap, so that an epoch costs what it takes and not what waits
        self._grown: list[Grown] = []
        self._files_taken = self._rows_taken = 0
        self._before: tuple[dict[str, Any] | None, list[Grown]] = (partial, [])
        """Where the last choice began."""
        self._elsewhere: set[str] = set()
        """Files that another replica's choice has taken before they were found here."""
        self._discovery = Discovery(folder.path, seen | {partial["name"]} if partial else set(seen))

    def look(self) -> None:
        self._discovery.look()
        self._receive()

    def release(self, names: Sequence[str]) -> None:
        if not self._archive:
            return
        try:
            os.makedirs(os.path.join(self._folder, ARCHIVE), exist_ok=True)
            for name in names:
                self._put_away(name)
        except OSError as error:
            raise Retryable(
                f"files {self._folder}: cannot be archived in {ARCHIVE}/ ({error.strerror}); allow that, or use after='keep'"
            ) from error

    def close(self) -> None:
        self._discovery.close()

    def backlog(self, now: float) -> bool:
        return self._partial is not None or bool(self._waiting)

    def waiting(self, now: float) -> int:
        return round(len(self._waiting) * self._rows_taken / self._files_taken) if self._files_taken else 0

    def slow_down(self, share: float) -> None:
        self._limits = self._cut_by.throttled(share)

    def choose(self, now: float, everything: bool) -> Choice | None:
        if not everything:  # what came after the look may still be written to, and must settle
            self._discovery.watch()
            self._receive()
        self._before = (self._partial, self._grown)
        popped: list[Found] = []
        try:
            return self._fill(self._ready(now, everything, popped))
        except BaseException:
            for file in popped:
                heapq.heappush(self._waiting, file)
            raise

    def follow(self, given: Choice | None, agreed: Choice | None) -> None:
        taken = set() if agreed is None else set(_names(agreed))
        mine = set() if given is None else set(_names(given))
        if given is not None:
            self._partial, grown = self._before
            known = set() if agreed is None else {split.payload["path"] for split in agreed.splits if "taken_with" in split.payload}
            self._grown = [one for one in grown if one.name not in known] + self._grown
            chosen = {split.payload["path"]: split.payload for split in given.splits}
            for name in mine - taken - ({self._partial["name"]} if self._partial else set()):
                # As it was: a file that has changed or gone meanwhile is found out when it is its turn. Nothing can fail here.
                heapq.heappush(self._waiting, Found(chosen[name]["mtime_ns"], name, chosen[name]["size"]))
        if agreed is not None:
            known = mine | ({self._partial["name"]} if self._partial else set())
            self._elsewhere |= taken - known
            self._partial = agreed.offset.get("partial")
            for split in agreed.splits:
                if split.payload["path"] in agreed.seen:
                    self._discovery.took(Found(split.payload["mtime_ns"], split.payload["path"], split.payload["size"]))

    def finished(self) -> bool:
        """Files can always come."""
        return False

    def _receive(self) -> None:
        self._grown.extend(self._discovery.grown())
        for found in self._discovery.take():
            if self._waiting:
                for file in found:
                    heapq.heappush(self._waiting, file)
            else:
                self._waiting = found  # sorted, and so a heap

    def _fill(self, ready: Iterator[Found]) -> Choice | None:
        """Files and parts of files up to the limits."""
        splits: list[Split] = [self._as_split(grown) for grown in self._grown]
        done: list[str] = []
        rows = size = 0
        while not (splits and self._limits.files is not None and len(done) >= self._limits.files):
            file = next(ready, None)
            if file is None:
                break
            for split in self._cut(file):
                rows, size = rows + split.rows, size + split.bytes
                if splits and not self._limits.allow(rows, size):
                    return self._chosen(splits, done, file, _beginning(split))
                splits.append(split)
            done.append(file.name)
            self._discovery.took(file)
        return self._chosen(splits, done, None, 0) if splits else None

    def _as_split(self, grown: Grown) -> Split:
        """A split without rows that becomes a dead letter: data appended to a taken file is not
        read, and the user must see that."""
        payload = {"path": grown.name, "size": grown.size, "mtime_ns": grown.mtime_ns, "taken_with": grown.before}
        return Split(payload, 1, 0, (grown.mtime_ns / 1e9, grown.mtime_ns / 1e9))

    def _chosen(self, splits: list[Split], done: list[str], left: Found | None, at: int) -> Choice:
        """The choice that leaves one file at a position of it."""
        self._partial = None
        self._grown = []
        self._files_taken += len(done)
        self._rows_taken += sum(split.rows for split in splits)
        if left is not None and at == 0:
            heapq.heappush(self._waiting, left)
        elif left is not None:
            self._partial = {"name": left.name, "size": left.size, "mtime_ns": left.mtime_ns, "next": at}
        return Choice(tuple(splits), {"partial": dict(self._partial)} if self._partial else {}, tuple(done))

    def _ready(self, now: float, everything: bool, popped: list[Found]) -> Iterator[Found]:
        """The files that may be taken now as they are now, the half-taken one first; those that waited are in ``popped``."""
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
        while self._waiting and (everything or self._is_settled(self._waiting[0], now)):
            # It may have grown or gone while it waited for its turn.
            name = self._waiting[0].name
            if name in self._elsewhere:
                self._elsewhere.discard(name)
                heapq.heappop(self._waiting)
                continue
            fresh = self._as_it_is(name)
            heapq.heappop(self._waiting)
            if fresh is None:
                self._discovery.forget(name)
            elif everything or self._is_settled(fresh, now):
                popped.append(fresh)
                yield fresh
            else:
                heapq.heappush(self._waiting, fresh)

    def _put_away(self, name: str) -> None:
        target = os.path.join(self._folder, ARCHIVE, name)
        # The archive has another file of this name: keep both files. The taken one is not read
        # again, since its name is known.
        if not os.path.lexists(target):
            with contextlib.suppress(FileNotFoundError):  # done before a crash, or its owner took it away
                os.rename(os.path.join(self._folder, name), target)

    def _is_settled(self, file: Found, now: float) -> bool:
        return now - file.mtime_ns / 1e9 >= self._settle

    def _as_it_is(self, name: str) -> Found | None:
        try:
            stat = os.stat(os.path.join(self._folder, name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Retryable(f"files {self._folder}: '{name}' cannot be looked at ({error.strerror}); check the folder") from error
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


def _names(choice: Choice) -> list[str]:
    """The files that a choice takes, wholly or in part."""
    partial = choice.offset.get("partial")
    return [*choice.seen, *([partial["name"]] if partial else [])]


def _beginning(split: Split) -> int:
    """Where a split begins in its file: a row group or a byte; 0 for a whole file."""
    groups: list[int] | None = split.payload.get("groups")
    return groups[0] if groups else int(split.payload.get("start", 0))


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
