"""Reading and merging one slot's part of an upsert table: the work of a stateful operator in one epoch.

The state of a key is its newest row in the segments that are alive for its key group. A task looks
the touched keys up, newest segment first, merges, and writes one new segment: the cost follows the
touched keys, not all keys.

Segments of one table may have been written by different versions of a plan: an older one may lack
columns, have columns that are not used any more, or have narrower types. A reader names the columns
that it wants; a missing column is null, which an aggregate takes for empty.

Rows of a table that *ends* are over when the table's floor has reached their time. A ``Reach`` has
the floor, and the times between which the rows of each key can end, so that only the segments and
chapters that may have them are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.aggregates import Part
from meander.state.grouping import Index, group_rows, merge_pairs
from meander.state.hashing import Hashes, groups_present, in_groups
from meander.state.segment import DELETED, HASH, LATEST, SOONEST, Block, Chapter, Segment, SegmentRef, Times, blocks_with

Open = Callable[[SegmentRef, Hashes], Segment]
"""A segment, or something like it that has at least its rows of the given hashes (ascending)."""


Columns = Sequence[str] | Mapping[str, pl.DataType]
"""The wanted columns and, if segments may be of several plans, their types."""

_OWNER = "__owner"


@dataclass(frozen=True)
class Kept:
    """A table that an operator keeps: the columns that identify its rows and, if they end, the
    column with that time."""

    keys: tuple[str, ...]
    time: str | None = None

    @property
    def ends(self) -> str:
        """The column of a table whose rows end."""
        assert self.time is not None
        return self.time


@dataclass(frozen=True)
class Reach:
    """Of a table whose rows end: which of them are looked for."""

    column: str
    """Says when a row ends."""
    floor: int
    """Rows that end here or before are over."""
    first: Times | None = None
    """For each key, the first time at which a row of it can end; None: any."""
    last: Times | None = None
    """And the last."""

    def within(self, wanted: Index, first: int, last: int) -> Index:
        """Those of the wanted keys whose rows can be among those that end in [first, last]."""
        if last <= self.floor:
            return wanted[:0]
        there: npt.NDArray[np.bool_] | None = None
        if self.first is not None and last != LATEST:
            there = self.first[wanted] <= last
        if self.last is not None and first != SOONEST:
            begun = self.last[wanted] >= first
            there = begun if there is None else there & begun
        return wanted if there is None or there.all() else wanted[there]

    def alive(self, block: Block, rows: Index) -> npt.NDArray[np.bool_]:
        """A mask of the rows of a block that are not over."""
        found: npt.NDArray[np.bool_] = self._times(block)[rows] > self.floor
        return found

    def wanted(self, block: Block, rows: Index, keys: Index) -> npt.NDArray[np.bool_]:
        """A mask of the rows of a block that are not over and end within the wanted times of their
        keys."""
        times = self._times(block)[rows]
        found: npt.NDArray[np.bool_] = times > self.floor
        if self.first is not None:
            found &= times >= self.first[keys]
        if self.last is not None:
            found &= times <= self.last[keys]
        return found

    def _times(self, block: Block) -> Times:
        times = block.array(self.column)
        assert times is not None, f"column '{self.column}' says when rows end, and has nulls"
        return times


Found = tuple[Block, Index, Index]
"""Rows of a block: which keys they are of, and where in the block they are."""


def find(
    refs: Sequence[SegmentRef],
    open_segment: Open,
    keys: pl.DataFrame,
    hashes: Hashes,
    key_groups: int,
    columns: Columns,
    reach: Reach | None = None,
) -> tuple[Index, dict[str, pl.Series]]:
    """The stored rows of the given keys (ascending by hash): which keys have one, and ``columns`` of it.

    Where the time at which a row ends is not part of the key, a merged segment can have two rows of a key, in two chapters: both come, the
    one that ends sooner first.
    """
    pending = np.arange(len(hashes))
    found: list[Found] = []
    touched = groups_present(hashes, key_groups)
    newest_first = sorted(refs, key=lambda r: r.sequence, reverse=True)
    for ref in newest_first:
        if len(pending) == 0:
            break
        wanted = pending
        if touched & ~ref.groups:
            wanted = pending[in_groups(hashes[pending], ref.groups, key_groups)]
        if reach is not None:
            wanted = reach.within(wanted, ref.first_end, ref.last_end)
        if len(wanted) == 0:
            continue
        probes = hashes[wanted]
        segment = open_segment(ref, probes)
        possible = segment.may_have(probes) if ref is not newest_first[-1] else None  # the oldest has most of the keys that the others lack
        wanted = wanted if possible is None else wanted[possible]
        taken: list[Index] = []
        for chapter in segment.chapters:
            mine = wanted if reach is None else reach.within(wanted, chapter.first, chapter.last)
            taken += _find_in_chapter(segment, chapter, keys, hashes, mine, found, reach)
        if taken:
            gone = np.zeros(len(hashes), np.bool_)
            for hits in taken:
                gone[hits] = True
            pending = pending[~gone[pending]]
    which = np.concatenate([hits for _, hits, _ in found]) if found else np.zeros(0, np.intp)
    return which, _gather_all(columns, found) if len(which) else {}


def _find_in_chapter(
    segment: Segment, chapter: Chapter, keys: pl.DataFrame, hashes: Hashes, wanted: Index, found: list[Found], reach: Reach | None
) -> list[Index]:
    """Add a chapter's rows of the wanted keys to ``found``. Returns all keys that the chapter
    settles, also by deletions and by rows that are over.

    As little as possible is done block by block: with many keys in a large segment, the calls cost
    more than their work.
    """
    if len(wanted) == 0:
        return []
    probes = hashes[wanted]
    stored, rows = ~probes, np.empty(len(probes), np.intp)
    visited: list[tuple[Block, int, int]] = []
    for block, begin, end in _blocks(segment, chapter, probes):
        if len(block.hashes):
            at = rows[begin:end]
            np.minimum(block.hashes.searchsorted(probes[begin:end]), len(block.hashes) - 1, out=at)
            block.hashes.take(at, out=stored[begin:end], mode="clip")
            visited.append((block, begin, end))
    same = np.flatnonzero(stored == probes)
    if len(same) == 0:
        return []
    bounds = np.searchsorted(same, [(begin, end) for _, begin, end in visited]).tolist()
    which, rows = wanted[same], rows[same]
    hits = [(block, which[a:b], rows[a:b]) for (block, _, _), (a, b) in zip(visited, bounds, strict=True) if a != b]
    equal = _same_keys(hits, keys)
    if not equal.all():
        hits = _walk(hits, keys, hashes, equal)
    for block, of, at in hits:
        kept = ~block.series(DELETED).to_numpy()[at] if block.has_deletions else None
        if reach is not None and len(at):
            alive = reach.alive(block, at)
            kept = alive if kept is None else kept & alive
        found.append((block, of, at) if kept is None or kept.all() else (block, of[kept], at[kept]))
    return [of for _, of, _ in hits]


def _walk(hits: Sequence[Found], keys: pl.DataFrame, hashes: Hashes, equal: npt.NDArray[np.bool_]) -> list[Found]:
    """Some rows have the right hash and another key: for those, look at the rows behind, as long as these have the hash, too."""
    found: list[Found] = []
    begin = 0
    for block, which, rows in hits:
        here, begin = equal[begin : begin + len(which)], begin + len(which)
        found.append((block, which[here], rows[here]))
        which, rows = which[~here], rows[~here] + 1
        while len(which):
            inside = rows < len(block.hashes)
            which, rows = which[inside], rows[inside]
            same = block.hashes[rows] == hashes[which]
            which, rows = which[same], rows[same]
            here = _same_keys([(block, which, rows)], keys)
            found.append((block, which[here], rows[here]))
            which, rows = which[~here], rows[~here] + 1
    return found


def find_all(
    refs: Sequence[SegmentRef],
    open_segment: Open,
    keys: pl.DataFrame,
    hashes: Hashes,
    key_groups: int,
    columns: Columns,
    reach: Reach | None = None,
) -> tuple[Index, dict[str, pl.Series]]:
    """All stored rows of the given keys (ascending by hash), in a table whose rows have more columns that tell them apart.

    For tables that rows are added to and never replaced in: every row of every segment counts.
    """
    found = list(_all_rows(refs, open_segment, keys, hashes, key_groups, reach))
    which = np.concatenate([hits for _, hits, _ in found]) if found else np.zeros(0, np.intp)
    return which, _gather_all(columns, found) if found else {}


def find_rows(
    refs: Sequence[SegmentRef],
    open_segment: Open,
    keys: pl.DataFrame,
    hashes: Hashes,
    key_groups: int,
    apart: Sequence[str],
    columns: Sequence[str],
    reach: Reach | None = None,
) -> tuple[Index, pl.DataFrame]:
    """The stored rows of the given keys (ascending by hash) where a key has many rows, which the
    columns ``apart`` distinguish. Returns the number of each row's key, and the rows.

    Unlike ``find_all`` it honours replaced and deleted rows: the newest of equal ones counts. In
    the order of keys, then ``apart``.
    """
    names = list(dict.fromkeys((*apart, *columns)))
    frames: list[pl.DataFrame] = []
    newest_first = sorted(refs, key=lambda r: r.sequence, reverse=True)
    for block, owners, rows in _all_rows(newest_first, open_segment, keys, hashes, key_groups, reach):
        if len(rows):
            gone = block.series(DELETED).gather(rows) if block.has_deletions else pl.repeat(False, len(rows), eager=True).alias(DELETED)
            frames.append(pl.DataFrame([pl.Series(_OWNER, owners), gone, *(block.series(name).gather(rows) for name in names)]))
    if not frames:
        return np.zeros(0, np.intp), pl.DataFrame()
    newest = pl.concat(frames).unique([_OWNER, *apart], keep="first", maintain_order=True)
    alive = newest.filter(~pl.col(DELETED)).sort(_OWNER, *apart, maintain_order=True)
    return alive.get_column(_OWNER).to_numpy().astype(np.intp), alive.select(names)


def _all_rows(
    refs: Iterable[SegmentRef], open_segment: Open, keys: pl.DataFrame, hashes: Hashes, key_groups: int, reach: Reach | None
) -> Iterator[Found]:
    """Every row of the given keys (ascending by hash), segment by segment, whatever became of it since. Without what is over."""
    for ref in refs:
        wanted = np.flatnonzero(in_groups(hashes, ref.groups, key_groups))
        if reach is not None:
            wanted = reach.within(wanted, ref.first_end, ref.last_end)
        if len(wanted) == 0:
            continue
        segment = open_segment(ref, hashes[wanted])
        possible = segment.may_have(hashes[wanted])
        if possible is not None:
            wanted = wanted[possible]
        for chapter in segment.chapters:
            mine = wanted if reach is None else reach.within(wanted, chapter.first, chapter.last)
            probes = hashes[mine]
            for block, begin, end in _blocks(segment, chapter, probes):
                owners, rows = _runs(block, probes[begin:end], mine[begin:end])
                kept = _same_keys([(block, owners, rows)], keys)
                if reach is not None and len(rows):
                    kept &= reach.wanted(block, rows, owners)
                if kept.any():  # a block without such rows may be a peer's answer that it has none, which has no columns to gather from
                    yield block, owners[kept], rows[kept]


def _runs(block: Block, probes: Hashes, owners: Index) -> tuple[Index, Index]:
    """All rows of a block that have one of the hashes: the numbers of the hashes, and the rows'
    places."""
    first = np.searchsorted(block.hashes, probes, "left")
    sizes = np.searchsorted(block.hashes, probes, "right") - first
    ends = np.cumsum(sizes)
    return np.repeat(owners, sizes), np.repeat(first - (ends - sizes), sizes) + np.arange(sizes.sum())


def _blocks(segment: Segment, chapter: Chapter, probes: Hashes) -> Iterator[tuple[Block, int, int]]:
    """The blocks that may have rows of the probes, and which probes each of them."""
    for number, begin, end in blocks_with(chapter, probes):
        yield segment.block(number), begin, end


def _gather_all(columns: Columns, found: Sequence[Found]) -> dict[str, pl.Series]:
    wanted = columns if isinstance(columns, Mapping) else dict.fromkeys(columns)
    return {name: _gather(name, found, dtype) for name, dtype in wanted.items()}


def _gather(name: str, found: Sequence[Found], dtype: pl.DataType | None = None) -> pl.Series:
    if not all(block.fits(name, dtype) for block, _, _ in found):
        return pl.concat([block.taken(name, rows, dtype) for block, _, rows in found])
    arrays = [block.array(name) for block, _, _ in found]
    if any(array is None for array in arrays):
        return pl.concat([block.series(name).gather(rows) for block, _, rows in found])
    taken = [array.take(rows) for array, (_, _, rows) in zip(arrays, found, strict=True) if array is not None]
    return pl.Series(name, np.concatenate(taken))


def _same_keys(found: Sequence[Found], keys: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Row by row, whether the found rows have the keys that they were looked up for."""
    which = np.concatenate([hits for _, hits, _ in found])
    equal = np.ones(len(which), np.bool_)
    if len(which):
        for column in keys.get_columns():
            stored = _gather(column.name, found, column.dtype)
            if column.dtype.is_integer() and column.null_count() == stored.null_count() == 0:
                equal &= stored.to_numpy() == column.to_numpy()[which]
            else:
                equal &= stored.eq_missing(column.gather(which)).to_numpy()
    return equal


def upsert(
    refs: Sequence[SegmentRef],
    open_segment: Open,
    keys: pl.DataFrame,
    hashes: Hashes,
    states: Mapping[str, pl.Series],
    parts: Mapping[str, Part],
    key_groups: int,
    reach: Reach | None = None,
) -> pl.DataFrame:
    """Merge one new state per key (ascending by hash) with what is stored: the rows of the new segment, hash first."""
    return merge_found(*find_states(refs, open_segment, keys, hashes, parts, key_groups, reach), keys, hashes, states, parts)


def find_states(
    refs: Sequence[SegmentRef],
    open_segment: Open,
    keys: pl.DataFrame,
    hashes: Hashes,
    parts: Mapping[str, Part],
    key_groups: int,
    reach: Reach | None = None,
) -> tuple[Index, dict[str, pl.Series]]:
    """The stored states of the given keys (ascending by hash): the keys that have one, and the
    states."""
    which, old = find(refs, open_segment, keys, hashes, key_groups, {name: part.dtype for name, part in parts.items()}, reach)
    return which, {name: fill_empty(series, parts[name]) for name, series in old.items()}


def merge_found(
    which: Index,
    old: Mapping[str, pl.Series],
    keys: pl.DataFrame,
    hashes: Hashes,
    states: Mapping[str, pl.Series],
    parts: Mapping[str, Part],
) -> pl.DataFrame:
    """``upsert``, when the stored states have been found already."""
    merged = {name: states[name] for name in parts}
    if len(which):
        everyone = len(which) == len(hashes) and bool((which[1:] > which[:-1]).all())
        newer = merged if everyone else {name: series.gather(which) for name, series in merged.items()}
        pairs = merge_pairs(old, newer, parts)
        merged = pairs if everyone else {name: _replace_rows(merged[name], which, pairs[name]) for name in parts}
    return pl.DataFrame([pl.Series(HASH, hashes), *keys.get_columns(), *merged.values()])


def _replace_rows(series: pl.Series, rows: Index, by: pl.Series) -> pl.Series:
    if series.dtype.is_numeric() and not series.dtype.is_decimal() and series.null_count() == 0 and by.null_count() == 0:
        values = series.to_numpy().copy()
        values[rows] = by.to_numpy()
        return pl.Series(series.name, values, dtype=series.dtype)
    source = np.arange(len(series))
    source[rows] = len(series) + np.arange(len(rows))
    return pl.concat([series, by]).gather(source)


def fill_empty(series: pl.Series, part: Part) -> pl.Series:
    """A state column with the state of no rows where there is none."""
    if part.empty is None or series.null_count() == 0:
        return series
    missing = series.is_null().to_numpy()
    return pl.concat([series, part.empty.alias(series.name)]).gather(np.where(missing, len(series), np.arange(len(series))))


def conform(frame: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """A frame with exactly these columns: null where it has none, wider where its own are narrower."""
    if frame.columns == list(schema) and frame.dtypes == list(schema.values()):
        return frame
    there = frame.schema
    columns = [pl.col(n) if there.get(n) == t else pl.col(n).cast(t) if n in there else pl.lit(None, t).alias(n) for n, t in schema.items()]
    return frame.select(columns)


def merge_segments(
    frames: Sequence[pl.DataFrame], keys: Sequence[str], drop_deleted: bool, like: Mapping[str, pl.DataType] | None = None
) -> pl.DataFrame:
    """Several segments' rows, newest first, to one: the newest row of every key. Compaction's work, and a reader's.

    The columns are those of the newest segment, or of ``like``: columns that only older ones have
    are not used any more.
    """
    deletions = any(DELETED in frame.columns for frame in frames)
    columns = {name: dtype for name, dtype in (like or frames[0].schema).items() if name != DELETED}
    if deletions:
        columns[DELETED] = pl.Boolean()
        frames = [f if DELETED in f.columns else f.with_columns(pl.lit(False).alias(DELETED)) for f in frames]
    stacked = pl.concat([conform(f, columns) for f in frames])
    groups = group_rows(stacked.select(keys), stacked.get_column(HASH).to_numpy())
    merged = stacked[groups.heads]
    if deletions and drop_deleted:
        merged = merged.filter(~pl.col(DELETED)).drop(DELETED)
    return merged
