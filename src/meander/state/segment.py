"""Segments: immutable Arrow IPC files of state rows, sorted by key hash.

A segment's columns are ``__hash``, the key columns, the value columns and, where it holds deletions,
``__deleted``. Its record batches are *blocks*: contiguous in memory once mapped, cut so that rows of one
hash never straddle two. The schema's metadata holds the sparse index (first hash and rows of every block),
so that a reader with byte ranges can find a block without reading the others. Any Arrow reader can open it.

A ``SegmentRef`` is what a manifest knows of a segment. Its ``groups`` are the key groups for which it is
still alive: compaction takes key groups away from its inputs, and a reader must not look at rows of the others
(they may have been deleted since).
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from meander.errors import Corrupted
from meander.state.hashing import Hashes

HASH = "__hash"
DELETED = "__deleted"
ALL = "__all"
"""The key column of a table whose rows have none: its only row has the key 0."""
BLOCK_ROWS = 65_536
BLOCK_BYTES = 8 << 20
_FILTERED_ROWS = 1_000
_3, _7 = np.uint64(3), np.uint64(7)
_FORMAT = 1


@dataclass(frozen=True)
class SegmentRef:
    """A segment as the manifest names it. ``sequence`` orders segments: the higher one is the newer."""

    name: str
    rows: int
    bytes: int
    sequence: int
    groups: int
    """Bit i is set while the segment is alive for key group i."""

    def without(self, groups: int) -> SegmentRef:
        return replace(self, groups=self.groups & ~groups)

    def to_json(self) -> list[Any]:
        return [self.name, self.rows, self.bytes, self.sequence, f"{self.groups:x}"]

    @staticmethod
    def from_json(fields: list[Any]) -> SegmentRef:
        name, rows, size, sequence, groups = fields
        return SegmentRef(name, rows, size, sequence, int(groups, 16))


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
            self._series[name] = pl.Series(name, self.batch.column(name))
        return self._series[name]

    def fits(self, name: str, dtype: pl.DataType | None) -> bool:
        """Whether the block has the column, and of this type: one that was written by an older plan may not."""
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
            index = json.loads(reader.schema.metadata[b"meander"])
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise Corrupted(f"segment '{name}' cannot be read ({error}); the store was changed from outside, or lost data") from error
        if index["format"] > _FORMAT:
            raise Corrupted(f"segment '{name}' has format {index['format']}, this version reads up to {_FORMAT}: use a newer Meander")
        self.name = name
        self.rows: int = index["rows"]
        self.schema: pa.Schema = reader.schema
        self.firsts: Hashes = np.array([int(first, 16) for first in index["firsts"]], np.uint64)
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
        """Which of these hashes can be in the segment; None where asking a filter is not worth one, or it is read piece by piece.

        A key that was not touched lately is in none of the younger runs: asking a filter costs a fraction of looking into each. Making
        one costs about as much as looking an eighth of the rows up, so it is made when that many were looked up.
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
        """All rows."""
        frames = [self.block(i).frame for i in range(len(self.firsts))]
        return pl.concat(frames) if frames else pl.DataFrame(pl.from_arrow(self._reader.read_all()))


class _Filter:
    """One bit for every part of the hash range, set where the segment has a row; 16 to 32 times as many parts as rows."""

    def __init__(self, segment: Segment) -> None:
        size = (16 * segment.rows).bit_length()
        self._shift = np.uint64(64 - size)
        self._bits = np.zeros(1 << max(0, size - 3), np.uint8)
        for number in range(len(segment.firsts)):  # a block's rows are close together: memory follows the block
            parts = segment.block(number).hashes >> self._shift
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
    """A segment's rows of some hashes (ascending), in order: what a peer that asks for keys is sent. None where there are none."""
    found = []
    possible = segment.may_have(hashes)
    if possible is not None:
        hashes = hashes[possible]
    for number, first in enumerate(segment.firsts):
        after = segment.firsts[number + 1] if number + 1 < len(segment.firsts) else None
        begin = 0 if number == 0 else int(np.searchsorted(hashes, first, "left"))
        end = len(hashes) if after is None else int(np.searchsorted(hashes, after, "left"))
        if begin < end:
            block, probes = segment.block(number), hashes[begin:end]
            probes = probes[np.append(True, probes[1:] != probes[:-1])]
            left, right = (np.searchsorted(block.hashes, probes, side) for side in ("left", "right"))
            count = right - left
            wanted = np.repeat(left - (np.cumsum(count) - count), count) + np.arange(count.sum(), dtype=np.int64)
            if len(wanted):  # taken by Arrow: a frame of the whole block would touch every row of it
                at = pa.Array.from_buffers(pa.int64(), len(wanted), [None, pa.py_buffer(wanted)])  # pa.array would import pandas
                found.append(block.batch.take(at))
    return pa.concat_batches(found) if found else None


def encode_segment(frame: pl.DataFrame, block_rows: int = BLOCK_ROWS) -> pa.Buffer:
    """The bytes of a segment. ``frame`` has the hash column first and is sorted by it. Blocks of wide rows have fewer of them."""
    hashes: Hashes = frame.get_column(HASH).to_numpy()
    if frame.height > _FILTERED_ROWS:
        block_rows = min(block_rows, max(_FILTERED_ROWS, int(BLOCK_BYTES * frame.height // max(1, frame.estimated_size()))))
    cuts = _cut_between_hashes(hashes, block_rows)
    blocks = [frame[begin:end] for begin, end in itertools.pairwise(cuts)]
    return encode_blocks(blocks or [frame], [int(hashes[cut]) for cut in cuts[:-1]] or [0])


def encode_blocks(blocks: list[pl.DataFrame], firsts: list[int]) -> pa.Buffer:
    """The bytes of a segment made of blocks; ``firsts`` are lower bounds of their hashes, ascending, that separate them."""
    tables = [to_arrow(block) for block in blocks]
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, indexed(tables[0].schema, sum(b.height for b in blocks), firsts)) as writer:
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


def indexed(schema: pa.Schema, rows: int, firsts: list[int]) -> pa.Schema:
    """A schema with a segment's index: how many rows it has, and where its blocks begin."""
    return schema.with_metadata({"meander": json.dumps({"format": _FORMAT, "rows": rows, "firsts": [f"{first:x}" for first in firsts]})})


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
