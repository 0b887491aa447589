"""Reading and merging one slot's part of an upsert table: the work of a stateful operator in one epoch.

The state of a key is its newest row in the segments that are alive for its key group. A task looks the
touched keys up, newest segment first, merges, and writes one new segment: what it costs follows the keys it
touches, not the keys there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.aggregates import Part
from meander.state.grouping import Index, group_rows, merge_pairs
from meander.state.hashing import Hashes, in_groups
from meander.state.segment import DELETED, HASH, Block, Segment, SegmentRef

Open = Callable[[SegmentRef, Hashes], Segment]
"""A segment, or something like it that has at least its rows of the given hashes (ascending)."""


def find(
    refs: Sequence[SegmentRef], open_segment: Open, keys: pl.DataFrame, hashes: Hashes, key_groups: int, columns: Sequence[str]
) -> tuple[Index, dict[str, pl.Series]]:
    """The stored rows of the given keys (ascending by hash): which keys have one, and ``columns`` of it."""
    pending = np.arange(len(hashes))
    found: list[tuple[Block, Index, Index]] = []
    everything = (1 << key_groups) - 1
    for ref in sorted(refs, key=lambda r: r.sequence, reverse=True):
        if len(pending) == 0:
            break
        wanted = pending
        if ref.groups != everything:
            wanted = pending[in_groups(hashes[pending], ref.groups, key_groups)]
        if len(wanted) == 0:
            continue
        segment = open_segment(ref, hashes[wanted])
        possible = segment.may_have(hashes[wanted])
        taken = _find_in_segment(segment, keys, hashes, wanted if possible is None else wanted[possible], found)
        if taken:
            gone = np.zeros(len(hashes), np.bool_)
            for hits in taken:
                gone[hits] = True
            pending = pending[~gone[pending]]
    which = np.concatenate([hits for _, hits, _ in found]) if found else np.zeros(0, np.intp)
    return which, {name: _gather(name, found) for name in columns} if len(which) else {}


def _find_in_segment(
    segment: Segment, keys: pl.DataFrame, hashes: Hashes, wanted: Index, found: list[tuple[Block, Index, Index]]
) -> list[Index]:
    """Add what a segment has of the wanted keys to ``found``. Returns all keys it has a word on, deletions included."""
    taken: list[Index] = []
    probes = hashes[wanted]
    for block, begin, end in _blocks(segment, probes):
        hits, rows = _probe(block, keys, probes[begin:end], wanted[begin:end])
        if len(hits) == 0:
            continue
        taken.append(hits)
        if block.has_deletions:
            kept = ~block.series(DELETED).to_numpy()[rows]
            hits, rows = hits[kept], rows[kept]
        found.append((block, hits, rows))
    return taken


def find_all(
    refs: Sequence[SegmentRef], open_segment: Open, keys: pl.DataFrame, hashes: Hashes, key_groups: int, columns: Sequence[str]
) -> tuple[Index, dict[str, pl.Series]]:
    """All stored rows of the given keys (ascending by hash), in a table whose rows have more columns that tell them apart.

    For tables that rows are added to and never replaced in: every row of every segment counts.
    """
    found: list[tuple[Block, Index, Index]] = []
    for ref in refs:
        wanted = np.flatnonzero(in_groups(hashes, ref.groups, key_groups))
        if len(wanted) == 0:
            continue
        probes = hashes[wanted]
        segment = open_segment(ref, probes)
        for block, begin, end in _blocks(segment, probes):
            first = np.searchsorted(block.hashes, probes[begin:end], "left")
            sizes = np.searchsorted(block.hashes, probes[begin:end], "right") - first
            ends = np.cumsum(sizes)
            rows = np.repeat(first - (ends - sizes), sizes) + np.arange(sizes.sum())
            owners = np.repeat(wanted[begin:end], sizes)
            equal = _same_keys(block, rows, keys, owners)
            found.append((block, owners[equal], rows[equal]))
    which = np.concatenate([hits for _, hits, _ in found]) if found else np.zeros(0, np.intp)
    return which, {name: _gather(name, found) for name in columns} if found else {}


def _blocks(segment: Segment, probes: Hashes) -> Iterator[tuple[Block, int, int]]:
    """The blocks that may have rows of the probes, and which probes each of them."""
    bounds = np.append(np.searchsorted(probes, segment.firsts[1:], "left"), len(probes))
    begin = 0
    for number, end in enumerate(bounds.tolist()):
        if begin != end:
            yield segment.block(number), begin, end
        begin = end


def _gather(name: str, found: Sequence[tuple[Block, Index, Index]]) -> pl.Series:
    arrays = [(block.array(name), rows) for block, _, rows in found]
    if all(array is not None for array, _ in arrays):
        return pl.Series(name, np.concatenate([array[rows] for array, rows in arrays if array is not None]))
    return pl.concat([block.series(name).gather(rows) for block, _, rows in found])


def _probe(block: Block, keys: pl.DataFrame, probes: Hashes, wanted: Index) -> tuple[Index, Index]:
    """Which of the wanted keys are in a block, and in which row. ``probes`` are the wanted keys' hashes."""
    stored = block.hashes
    if len(stored) == 0:
        return wanted[:0], wanted[:0]
    rows = np.minimum(np.searchsorted(stored, probes), len(stored) - 1)
    same = stored[rows] == probes
    candidates, rows = wanted[same], rows[same]
    equal = _same_keys(block, rows, keys, candidates)
    if equal.all():
        return candidates, rows
    hits, places = [candidates[equal]], [rows[equal]]
    candidates, rows = candidates[~equal], rows[~equal]
    probes_of = dict(zip(wanted.tolist(), probes.tolist(), strict=True))
    while len(candidates):  # another key of the same hash stands here: look at the next row
        rows = rows + 1
        going_on = rows < len(stored)
        candidates, rows = candidates[going_on], rows[going_on]
        same = stored[rows] == np.array([probes_of[c] for c in candidates.tolist()], np.uint64)
        candidates, rows = candidates[same], rows[same]
        equal = _same_keys(block, rows, keys, candidates)
        hits.append(candidates[equal])
        places.append(rows[equal])
        candidates, rows = candidates[~equal], rows[~equal]
    return np.concatenate(hits), np.concatenate(places)


def _same_keys(block: Block, rows: Index, keys: pl.DataFrame, wanted: Index) -> npt.NDArray[np.bool_]:
    equal = np.ones(len(rows), np.bool_)
    for column in keys.get_columns():
        stored = block.array(column.name)
        if stored is not None and column.dtype.is_integer() and column.null_count() == 0:
            equal &= stored[rows] == column.to_numpy()[wanted]
        else:
            equal &= block.series(column.name).gather(rows).eq_missing(column.gather(wanted)).to_numpy()
    return equal


def upsert(
    refs: Sequence[SegmentRef],
    open_segment: Open,
    keys: pl.DataFrame,
    hashes: Hashes,
    states: Mapping[str, pl.Series],
    parts: Mapping[str, Part],
    key_groups: int,
) -> pl.DataFrame:
    """Merge one new state per key (ascending by hash) with what is stored: the rows of the new segment, hash first."""
    which, old = find(refs, open_segment, keys, hashes, key_groups, list(parts))
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


def merge_segments(frames: Sequence[pl.DataFrame], keys: Sequence[str], drop_deleted: bool) -> pl.DataFrame:
    """Several segments' rows, newest first, to one: the newest row of every key. Compaction's work, and a reader's."""
    columns = list(dict.fromkeys(name for frame in frames for name in frame.columns))
    if DELETED in columns:
        frames = [f if DELETED in f.columns else f.with_columns(pl.lit(False).alias(DELETED)) for f in frames]
    stacked = pl.concat([f.select(columns) for f in frames])
    groups = group_rows(stacked.select(keys), stacked.get_column(HASH).to_numpy())
    merged = stacked[groups.heads]
    if DELETED in columns and drop_deleted:
        merged = merged.filter(~pl.col(DELETED)).drop(DELETED)
    return merged
