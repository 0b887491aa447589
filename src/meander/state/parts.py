"""Parts of segments: their rows of some key groups, as segments of their own. Parts are sent when
key groups move.

Key groups are ranges of hashes, and a segment is sorted by hash. So a part is a few slices of every
block, and parts that are read together are a segment again. Only the bytes that are sent are
copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from meander.state.hashing import Hashes
from meander.state.segment import BLOCK_BYTES, BLOCK_ROWS, HASH, SOONEST, Block, Chapter, Segment, indexed, without_rows


def runs_of(groups: int) -> list[tuple[int, int]]:
    """Stretches of neighbouring key groups among those that are set: the first, and the one after the last.

    >>> runs_of(0b1101110)
    [(1, 4), (5, 7)]
    """
    changes = groups ^ (groups << 1)
    edges = [at for at in range(changes.bit_length()) if changes >> at & 1]
    return list(zip(edges[::2], edges[1::2], strict=True))


def pieces_of(groups: int, count: int) -> list[int]:
    """Key groups in at most ``count`` lots of neighbours.

    >>> [bin(piece) for piece in pieces_of(0b110111, 2)]
    ['0b111', '0b110000']
    """
    members = [at for at in range(groups.bit_length()) if groups >> at & 1]
    size = max(1, -(-len(members) // max(1, count)))
    return [sum(1 << at for at in members[begin : begin + size]) for begin in range(0, len(members), size)]


def encode_part(segment: Segment, groups: int, key_groups: int) -> pa.Buffer:
    """A segment's rows of some key groups, as a segment."""
    blocks: list[list[pa.RecordBatch]] = []
    chapters: list[list[int]] = []
    for chapter in segment.chapters:
        slices = (view.batch() for view in _views(segment, chapter, groups, key_groups))
        mine = list(_in_blocks(batch for batch in slices if batch.num_rows))
        if mine:
            rows = sum(batch.num_rows for block in mine for batch in block)
            chapters.append([len(mine), rows, chapter.first, chapter.last])
            blocks += mine
    blocks = blocks or [[without_rows(segment.schema)]]
    rows = sum(count for _, count, _, _ in chapters)
    listed = chapters if segment.chapters[0].first != SOONEST else ()
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, indexed(segment.schema, rows, [_first_hash(block[0]) for block in blocks], listed)) as writer:
        for block in blocks:
            writer.write_batch(block[0] if len(block) == 1 else pa.concat_batches(block))
    return out.getvalue()


class Joined(Segment):
    """Parts of one segment, read as one. Each is taken for its key groups, and no key group comes twice."""

    def __init__(self, name: str, parts: Sequence[tuple[int, Segment]], key_groups: int) -> None:
        self.name = name
        self.rows = sum(part.rows for _, part in parts)
        self.schema = parts[0][1].schema
        views: dict[tuple[int, int], list[_View]] = {}
        for groups, part in parts:
            for chapter in part.chapters:
                views.setdefault((chapter.first, chapter.last), []).extend(_views(part, chapter, groups, key_groups))
        self._views: list[_View] = []
        chapters = []
        for (first, last), mine in sorted(views.items(), key=lambda item: item[0]):
            mine.sort(key=lambda view: view.begin)
            firsts = np.array([view.begin for view in mine], np.uint64)
            chapters.append(Chapter(len(self._views), firsts, first, last))
            self._views += mine
        self.chapters = tuple(chapters)
        self.firsts = np.array([view.begin for view in self._views], np.uint64)
        self._blocks: dict[int, Block] = {}
        self._is_at_hand, self._filter, self._probes = True, None, 0

    def block(self, number: int) -> Block:
        if number not in self._blocks:
            self._blocks[number] = Block(self._views[number].batch())
        return self._blocks[number]

    def frame(self) -> pl.DataFrame:
        frames = [self.block(number).frame for number in range(len(self.firsts))]
        return pl.concat(frames) if frames else pl.DataFrame(pl.from_arrow(without_rows(self.schema)))


class _View:
    """The rows of a block with a hash in [begin, end). Looked for when they are needed: until then nothing is read."""

    def __init__(self, segment: Segment, number: int, begin: int, end: int) -> None:
        self._segment, self._number, self.begin, self._end = segment, number, begin, end

    def batch(self) -> pa.RecordBatch:
        block = self._segment.block(self._number)
        a, b = _place(block.hashes, self.begin), _place(block.hashes, self._end)
        return block.batch if (a, b) == (0, len(block.hashes)) else block.batch.slice(a, b - a)


def _views(segment: Segment, chapter: Chapter, groups: int, key_groups: int) -> Iterator[_View]:
    """Where a chapter has rows of some key groups, ascending by hash. Names no block that has none."""
    width = (1 << 64) // key_groups
    runs = [(begin * width, end * width) for begin, end in runs_of(groups & ((1 << key_groups) - 1))]
    for number, (lowest, beyond) in zip(chapter.numbers, chapter.spans(), strict=True):
        for begin, end in runs:
            if begin < beyond and end > lowest:
                yield _View(segment, number, max(begin, lowest), min(end, beyond))


def _in_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Neighbours together, as long as they make no more than a block."""
    block: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if block and (rows + batch.num_rows > BLOCK_ROWS or size + batch.nbytes > BLOCK_BYTES):
            yield block
            block, rows, size = [], 0, 0
        block.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if block:
        yield block


def _first_hash(batch: pa.RecordBatch) -> int:
    return int(batch.column(HASH)[0].as_py()) if batch.num_rows else 0


def _place(hashes: Hashes, bound: int) -> int:
    return len(hashes) if bound >= 1 << 64 else int(np.searchsorted(hashes, np.uint64(bound), "left"))
