"""Segments: immutable Arrow IPC files of state rows, sorted by key hash.

A segment's columns are ``__hash``, the key columns, the value columns and, where it holds deletions,
``__deleted``. Its record batches are *blocks*: contiguous in memory once mapped, cut so that rows of one
hash never straddle two. The schema's metadata holds the sparse index (first hash and rows of every block),
so that a reader with byte ranges can find a block without reading the others. Any Arrow reader can open it.

Rows of some tables *end* at a time, which is in a column. Such a segment has *chapters*, one after
the other in time: stretches of blocks whose rows end between two times in the index. Rows that end
together lie together, and within a chapter they are sorted by hash. A reader that needs certain
times opens only their chapters. All other segments have one chapter, without bounds.

If the time is not part of a row's identity, later rows of a key end later, and a merged segment can
have several of them, in several chapters: the one that ends last is the newest. A reader of several
chapters takes the later ones first.

A ``SegmentRef`` is a manifest's record of a segment. Its ``groups`` are the key groups for which it
is still alive: compaction takes key groups away from its inputs, and a reader must not look at rows
of the others (they may have been deleted since). Its ``ends`` say when its rows end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from meander.errors import Corrupted
from meander.state.formats import SEGMENT
from meander.state.hashing import Hashes

HASH = "__hash"
DELETED = "__deleted"
ALL = "__all"
"""The key column of a table whose rows have none: its only row has the key 0."""
BLOCK_ROWS = 65_536
BLOCK_BYTES = 8 << 20
CHAPTER_ROWS = 4_096
"""Rows below which cutting by time saves nothing: looking through them costs about what finding them does."""
MOST_CHAPTERS = 64
SOONEST, LATEST = -(1 << 63), (1 << 63) - 1
"""The bounds of a chapter without bounds."""
_FILTERED_ROWS = 1_000
_3, _7 = np.uint64(3), np.uint64(7)
Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SegmentRef:
    """A segment as the manifest names it. ``sequence`` orders segments: the higher one is the newer."""

    name: str
    rows: int
    bytes: int
    sequence: int
    groups: int
    """Bit i is set while the segment is alive for key group i."""
    ends: tuple[int, ...] = ()
    """When its rows end: the smallest time, those by which about a quarter, a half and three quarters have ended, and the
    largest. Empty where rows do not end."""

    def without(self, groups: int) -> SegmentRef:
        return replace(self, groups=self.groups & ~groups)

    @property
    def first_end(self) -> int:
        return self.ends[0] if self.ends else SOONEST

    @property
    def last_end(self) -> int:
        return self.ends[-1] if self.ends else LATEST

    def alive_rows(self, floor: int) -> int:
        """About how many of its rows end above ``floor``; none only where there is none.

        >>> SegmentRef("s", 100, 0, 1, 1, (10, 20, 30, 40, 90)).alive_rows(30)
        50
        """
        if not self.ends or floor < self.first_end:
            return self.rows
        parts = self.ends[1:]
        return -(-self.rows * sum(end > floor for end in parts) // len(parts))

    def to_json(self) -> list[Any]:
        fields = [self.name, self.rows, self.bytes, self.sequence, f"{self.groups:x}"]
        return [*fields, *self.ends]

    @staticmethod
    def from_json(fields: list[Any]) -> SegmentRef:
        name, rows, size, sequence, groups, *ends = fields
        return SegmentRef(name, rows, size, sequence, int(groups, 16), tuple(ends))


@dataclass(frozen=True)
class Chapter:
    """Neighbouring blocks of a segment, ascending by hash, whose rows end in [first, last]."""

    begin: int
    """The number of its first block."""
    firsts: Hashes
    """A lower bound of the hashes of each of its blocks."""
    first: int = SOONEST
    last: int = LATEST
    rows: int = 0

    @property
    def numbers(self) -> range:
        """The numbers of its blocks."""
        return range(self.begin, self.begin + len(self.firsts))

    def spans(self) -> list[tuple[int, int]]:
        """For each block, the hashes that it can have: from the first up to below the second."""
        return list(itertools.pairwise([0, *self.firsts.tolist()[1:], 1 << 64])) if len(self.firsts) else []


class Block:
    """One record batch of a segment, without copies. Columns are made ready one by one, on first use."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._series: dict[str, pl.Series] = {}
        self._arrays: dict[str, npt.NDArray[Any] | None] = {}
        self.hashes: Hashes = self.series(HASH).to_numpy()  # a view, and unlike Arrow's own it does not import pandas
        self._names = frozenset(batch.schema.names)
        self.has_deletions = DELETED in self._names

    def series(self, name: str) -> pl.Series:
        if name not in self._series:
            column = self.batch.column(name)
            if pa.types.is_dictionary(column.type):  # the values of an Enum are in the field, and not in its array
                self._series[name] = pl.DataFrame(pl.from_arrow(self.batch.select([name]))).to_series()
            else:
                self._series[name] = pl.Series(name, column)
        return self._series[name]

    def fits(self, name: str, dtype: pl.DataType | None) -> bool:
        """Whether the block has the column, and with this type: a block written by an older plan
        may lack it."""
        return name in self._names and (dtype is None or self.series(name).dtype == dtype)

    def taken(self, name: str, rows: npt.NDArray[np.intp], dtype: pl.DataType | None) -> pl.Series:
        """Some rows of a column as this type; null where the block has no such column."""
        if name not in self._names and dtype is not None:
            return pl.repeat(None, len(rows), dtype=dtype, eager=True).alias(name)
        found = self.series(name).gather(rows)
        return found if dtype is None or found.dtype == dtype else found.cast(dtype)

    def array(self, name: str) -> npt.NDArray[Any] | None:
        """The column as NumPy sees it, or None where that would not be the column itself (nulls, text, lists)."""
        if name not in self._arrays:
            column = self.batch.column(name)
            plain = column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
            self._arrays[name] = self.series(name).to_numpy() if plain else None
        return self._arrays[name]

    @cached_property
    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(pl.from_arrow(self.batch, rechunk=False))


class Segment:
    """An opened segment."""

    def __init__(self, name: str, buffer: pa.Buffer) -> None:
        try:
            reader = pa.ipc.open_file(buffer)
        except pa.ArrowException as error:
            raise Corrupted(f"segment '{name}' cannot be read ({error}); the store was changed from outside, or lost data") from error
        index = SEGMENT.in_metadata(reader.schema.metadata, name)
        self.name = name
        self.rows: int = index["rows"]
        self.schema: pa.Schema = reader.schema
        self.firsts: Hashes = np.array([int(first, 16) for first in index["firsts"]], np.uint64)
        self.chapters = _chapters_of(self.firsts, self.rows, index.get("chapters", ()))
        self._reader = reader
        self._is_at_hand = isinstance(buffer, pa.Buffer)
        self._blocks: dict[int, Block] = {}
        self._filter: _Filter | None = None
        self._probes = 0

    def block(self, number: int) -> Block:
        if number not in self._blocks:
            self._blocks[number] = Block(self._reader.get_batch(number))
        return self._blocks[number]

    def may_have(self, probes: Hashes) -> npt.NDArray[np.bool_] | None:
        """A mask of the hashes that can be in the segment; None if a filter is not worth its cost,
        or if the segment is read piece by piece.

        A key that was not touched lately is in none of the younger runs: a filter costs a fraction
        of a lookup in each. Making a filter costs about as much as looking up an eighth of the
        rows, so it is made when that many were looked up.
        """
        self._probes += len(probes)
        if self._filter is None:
            if not self._is_at_hand or self.rows < _FILTERED_ROWS or self._probes < self.rows // 8:
                return None
            self._filter = _Filter(self)
        return self._filter.may_have(probes)

    def columns(self) -> pl.Schema:
        """Its columns."""
        return self.block(0).frame.schema if len(self.firsts) else self.frame().schema

    def frame(self) -> pl.DataFrame:
        """All rows, chapter by chapter."""
        frames = [self.block(i).frame for i in range(len(self.firsts))]
        return pl.concat(frames) if frames else pl.DataFrame(pl.from_arrow(self._reader.read_all()))

    def ending(self, column: str, above: int, upto: int) -> pl.DataFrame:
        """The rows that end above one time and not above another. Those of later chapters first: of several rows of a key the newest."""
        frames = []
        for chapter in reversed(self.chapters):
            if chapter.last <= above or chapter.first > upto:
                continue
            whole = chapter.first > above and chapter.last <= upto
            for number in chapter.numbers:
                frame = self.block(number).frame
                frames.append(frame if whole else frame.filter(pl.col(column).is_between(above, upto, closed="right")))
        return pl.concat(frames) if frames else self.columns().to_frame()

    def next_end(self, column: str, after: int) -> int:
        """The first time after this one at which a row ends; ``LATEST`` where none does. Reads one chapter at most."""
        found = LATEST
        for chapter in self.chapters:
            if chapter.first > after:
                found = min(found, chapter.first)
            elif chapter.last > after:
                for number in chapter.numbers:
                    times = self.block(number).series(column).to_numpy()
                    found = min(found, int(times[times > after].min(initial=LATEST)))
        return found


class _Filter:
    """One bit for every part of the hash range, set where the segment has a row; 16 to 32 times as many parts as rows."""

    def __init__(self, segment: Segment) -> None:
        size = (16 * segment.rows).bit_length()
        self._shift = np.uint64(64 - size)
        self._bits = np.zeros(1 << max(0, size - 3), np.uint8)
        for number in range(len(segment.firsts)):  # a block's rows are close together: memory follows the block
            parts = segment.block(number).hashes >> self._shift  # ascending within a block
            if len(parts):
                first, last = int(parts[0]) >> 3, int(parts[-1]) >> 3
                occupied = np.zeros((last - first + 1) << 3, np.bool_)
                occupied[(parts - np.uint64(first << 3)).astype(np.intp)] = True
                self._bits[first : last + 1] |= np.packbits(occupied, bitorder="little")

    def may_have(self, probes: Hashes) -> npt.NDArray[np.bool_]:
        part = probes >> self._shift
        found: npt.NDArray[np.bool_] = (self._bits[(part >> _3).astype(np.intp)] >> (part & _7).astype(np.uint8)) & np.uint8(1) != 0
        return found


def rows_of_hashes(segment: Segment, hashes: Hashes) -> pa.RecordBatch | None:
    """A segment's rows of some hashes (ascending), in order, as they are sent to a peer that asks
    for keys. None if there are none.

    They make one chapter, in which a lookup finds the first row of a key: so the row that ends last
    comes first.
    """
    found = []
    possible = segment.may_have(hashes)
    if possible is not None:
        hashes = hashes[possible]
    for chapter in reversed(segment.chapters):
        for number, begin, end in blocks_with(chapter, hashes):
            block, probes = segment.block(number), hashes[begin:end]
            probes = probes[np.append(True, probes[1:] != probes[:-1])]
            left, right = (np.searchsorted(block.hashes, probes, side) for side in ("left", "right"))
            count = right - left
            wanted = np.repeat(left - (np.cumsum(count) - count), count) + np.arange(count.sum(), dtype=np.int64)
            if len(wanted):
                found.append(_taken(block.batch, wanted))
    if not found:
        return None
    rows = pa.concat_batches(found)
    if len(segment.chapters) > 1:
        rows = _taken(rows, np.argsort(pl.Series(rows.column(HASH)).to_numpy(), kind="stable"))
    return rows


def _taken(rows: pa.RecordBatch, at: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Some rows, taken by Arrow: a frame of a whole block would touch every row of it. ``pa.array`` would import pandas."""
    return rows.take(pa.Array.from_buffers(pa.int64(), len(at), [None, pa.py_buffer(at)]))


def blocks_with(chapter: Chapter, probes: Hashes) -> list[tuple[int, int, int]]:
    """The blocks of a chapter that may have rows of the probes (ascending), and which probes each of them."""
    if len(chapter.firsts) == 0:
        return []
    bounds = [0, *np.searchsorted(probes, chapter.firsts[1:], "left").tolist(), len(probes)]
    return [(n, begin, end) for n, (begin, end) in zip(chapter.numbers, itertools.pairwise(bounds), strict=True) if begin != end]


def encode_segment(frame: pl.DataFrame, block_rows: int = BLOCK_ROWS, time: str | None = None) -> pa.Buffer:
    """The bytes of a segment. ``frame`` has the hash column first and is sorted by it. Blocks of wide rows have fewer of them.

    ``time`` is the column that says when rows end, where they do: they are put into chapters by it.
    """
    if frame.height > _FILTERED_ROWS:
        block_rows = min(block_rows, max(_FILTERED_ROWS, int(BLOCK_BYTES * frame.height // max(1, frame.estimated_size()))))
    if time is None or frame.height == 0:
        return encode_blocks(*cut_into_blocks(frame, block_rows))
    blocks: list[pl.DataFrame] = []
    firsts: list[int] = []
    chapters: list[list[int]] = []
    for part in cut_by_time(frame, time):
        more, bounds = cut_into_blocks(part, block_rows)
        chapters.append(chapter_of(part, time, len(more)))
        blocks += more
        firsts += bounds
    return encode_blocks(blocks, firsts, chapters)


def cut_into_blocks(frame: pl.DataFrame, block_rows: int) -> tuple[list[pl.DataFrame], list[int]]:
    """Rows that are sorted by hash as blocks, and the first hash of each."""
    hashes: Hashes = frame.get_column(HASH).to_numpy()
    cuts = _cut_between_hashes(hashes, block_rows)
    blocks = [frame[begin:end] for begin, end in itertools.pairwise(cuts)]
    return blocks or [frame], [int(hashes[cut]) for cut in cuts[:-1]] or [0]


def cut_by_time(frame: pl.DataFrame, time: str) -> list[pl.DataFrame]:
    """Rows in chapters of about equal size, by when they end. Their order within a chapter stays."""
    count = min(MOST_CHAPTERS, frame.height // CHAPTER_ROWS)
    if count < 2:
        return [frame]
    times: Times = frame.get_column(time).to_numpy()
    at = (np.arange(1, count) * frame.height) // count
    bounds = np.unique(np.partition(times, at)[at])  # a chapter ends with one of these times
    of = np.searchsorted(bounds, times, "left").astype(np.uint8)
    order = np.argsort(of, kind="stable")
    edges = [0, *np.cumsum(np.bincount(of, minlength=len(bounds) + 1)).tolist()]
    ordered = frame[order]
    return [ordered[begin:end] for begin, end in itertools.pairwise(edges) if begin != end]


def chapter_of(rows: pl.DataFrame, time: str, blocks: int) -> list[int]:
    """A chapter as the index has it: its blocks, its rows, and when the first and the last of these end."""
    times: Times = rows.get_column(time).to_numpy()
    return [blocks, len(times), int(times.min()), int(times.max())]


def ends_of(data: pa.Buffer) -> tuple[int, ...]:
    """When the rows of an encoded segment end, as a ``SegmentRef`` has it. Reads the index alone."""
    return ends_in(Segment("", data).chapters) if data.size else ()


def ends_in(chapters: Sequence[Chapter]) -> tuple[int, ...]:
    """
    >>> no_hashes = np.zeros(0, np.uint64)
    >>> ends_in([Chapter(0, no_hashes, 5, 10, rows=6), Chapter(1, no_hashes, 11, 99, rows=2)])
    (5, 10, 10, 10, 99)
    """
    if len(chapters) == 0 or chapters[0].first == SOONEST:
        return ()
    ended = list(itertools.accumulate(chapter.rows for chapter in chapters))
    quarters = [next(c.last for c, n in zip(chapters, ended, strict=True) if 4 * n >= part * ended[-1]) for part in (1, 2, 3, 4)]
    return (chapters[0].first, *quarters)


def encode_blocks(blocks: list[pl.DataFrame], firsts: list[int], chapters: Sequence[Sequence[int]] = ()) -> pa.Buffer:
    """The bytes of a segment made of blocks; ``firsts`` are lower bounds of their hashes, ascending in each chapter, that separate them."""
    tables = [to_arrow(block) for block in blocks]
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, indexed(tables[0].schema, sum(b.height for b in blocks), firsts, chapters)) as writer:
        for table in tables:
            # Without rows a table has no batch at all, and making one of a list would import pandas: an answer would wait for that.
            batches = table.combine_chunks().to_batches()
            writer.write_batch(batches[0] if batches else without_rows(table.schema))
    return out.getvalue()


def to_arrow(frame: pl.DataFrame) -> pa.Table:
    """A frame for Arrow to write.

    Polars 2.1 gives lists that were gathered from several chunks, and are all empty, out with offsets beyond their values: a file that
    nobody can read. Such columns are made anew.
    """
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.List) and frame.height and not (lists := frame.get_column(name)).list.len().sum():
            frame = frame.with_columns(pl.Series(name, [None if null else [] for null in lists.is_null().to_list()], dtype=dtype))
    return frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())


def encode_batch(rows: pa.RecordBatch) -> pa.Buffer:
    """A few rows of a segment, as one."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, indexed(rows.schema, rows.num_rows, [0])) as writer:
        writer.write_batch(rows)
    return out.getvalue()


def indexed(schema: pa.Schema, rows: int, firsts: Sequence[int], chapters: Sequence[Sequence[int]] = ()) -> pa.Schema:
    """A schema with a segment's index: how many rows it has, where its blocks begin, and its chapters."""
    by_time = {"chapters": [list(chapter) for chapter in chapters]} if chapters else {}
    return schema.with_metadata(SEGMENT.metadata(rows=rows, firsts=[f"{first:x}" for first in firsts], **by_time))


def _chapters_of(firsts: Hashes, rows: int, listed: Sequence[Sequence[int]]) -> tuple[Chapter, ...]:
    if not listed:
        return (Chapter(0, firsts, rows=rows),)
    found = []
    begin = 0
    for blocks, count, first, last in listed:
        found.append(Chapter(begin, firsts[begin : begin + blocks], first, last, count))
        begin += blocks
    return tuple(found)


def without_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _cut_between_hashes(hashes: Hashes, block_rows: int) -> list[int]:
    """Where blocks begin, and the end: rows of one hash stay together."""
    if len(hashes) == 0:
        return [0]
    cuts = [0]
    while len(hashes) - cuts[-1] > block_rows:
        at = int(np.searchsorted(hashes, hashes[cuts[-1] + block_rows], "left"))
        if at == cuts[-1]:  # one hash fills the block: let it grow
            at = int(np.searchsorted(hashes, hashes[cuts[-1] + block_rows], "right"))
        cuts.append(at)
    if cuts[-1] != len(hashes):
        cuts.append(len(hashes))
    return cuts
