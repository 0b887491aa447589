"""Windows in a task: which rows are late, what is stored of a window, and what comes out when it closes. Spark-free.

State is one row per key and *pane*, in one table per bucket of time (see ``plan.windows``). The driver drops a bucket when no window
needs it any more; a task writes nothing into a bucket that goes with this epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.aggregates import Agg, Part
from meander.coordinate.watermarks import low
from meander.plan.eventtime import END, START
from meander.plan.windows import FOREVER, Times, Window
from meander.state.grouping import fold_states, group_rows
from meander.state.hashing import Hashes, hash_keys, in_groups, spread_within_groups
from meander.state.manifest import Manifest, operator_of
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment
from meander.state.table import Open, find, merge_segments, upsert

PANE = "__pane"


@dataclass(frozen=True)
class Windowing:
    """What makes a stateful operator a windowed one."""

    window: Window
    time: str
    shift: int
    dtype: pl.Datetime
    emit: str
    lateness: int
    marks: frozenset[str]
    delay: int
    keeps_late: bool
    """Whether a stream takes the late rows. Otherwise they go to the dead letters."""

    def times(self, frame: pl.DataFrame) -> Times:
        found: Times = frame.get_column(self.time).dt.epoch("us").to_numpy()
        return found + self.shift

    def is_late(self, times: Times, late: int) -> npt.NDArray[np.bool_]:
        """Whether every window of a row has closed, and is not open for what comes late either."""
        found: npt.NDArray[np.bool_] = self.window.last_start(times) + (self.window.size + self.lateness) <= late
        return found

    def finish(self, rows: pl.DataFrame, keys: Sequence[str], aggs: Sequence[Agg]) -> pl.DataFrame:
        """Windows' states (or panes', to a reader) to what is shown of them."""
        counted = [pl.col(f"{agg.name}.values").list.len().cast(pl.Int64).alias(f"{agg.name}.n") for agg in aggs if agg.keeps == "set"]
        begin, size = (START, self.window.size) if START in rows.columns else (PANE, self.window.pane)
        zoned = pl.Datetime("us", self.dtype.time_zone)
        start, end = pl.col(begin).cast(zoned).alias(START), (pl.col(begin) + size).cast(zoned).alias(END)
        times = [moment.dt.cast_time_unit(self.dtype.time_unit) for moment in (start, end)]
        return rows.with_columns(counted).select(*(pl.col(key) for key in keys), *times, *(agg.finish() for agg in aggs))

    def is_over(self, bucket: int, evict: int) -> bool:
        return self.window.expires(bucket) + self.lateness <= evict

    def is_due(self, bucket: int, late: int, evict: int) -> bool:
        """Whether a window that needs this bucket ends after ``late`` and not after ``evict``."""
        window = self.window
        newest = (min(evict, window.expires(bucket)) - window.offset - window.size) // window.step * window.step
        return newest + window.offset + window.size > late and newest + window.offset + window.size >= window.first_due(bucket)


def bucket_table(operator: str, bucket: int) -> str:
    return f"{operator}.@{bucket}"


def bucket_of(table: str) -> int | None:
    """The bucket a table is of; None for any other table.

    >>> bucket_of("visits.@-3"), bucket_of("visits.pages"), bucket_of("visits")
    (-3, None, None)
    """
    _, at, number = table.partition(".@")
    return int(number) if at else None


def hash_panes(frame: pl.DataFrame, keys: Sequence[str], window: Window, column: str = PANE) -> Hashes:
    """A key's rows stay in the key's group, whatever their time: windows share panes. Time is the key where there is no other."""
    whole = hash_keys(frame.select(*keys, column))
    if not keys and window.per_pane == 1:
        return whole
    return spread_within_groups(hash_keys(frame.select(keys)) if keys else np.zeros(frame.height, np.uint64), whole)


@dataclass(frozen=True)
class Desk:
    """What an operator's task has at hand: the marks of this epoch, its buckets, and how to read them."""

    late: int
    evict: int
    groups: int
    key_groups: int
    segments: Mapping[str, tuple[SegmentRef, ...]]
    open: Open
    scan: Callable[[SegmentRef], Segment]


class WindowMerge:
    """One operator in one epoch: merges what has arrived, and makes rows of the windows that are to be emitted."""

    def __init__(self, name: str, windowing: Windowing, keys: tuple[str, ...], parts: Mapping[str, Part], desk: Desk) -> None:
        self._name, self._windowing, self._keys, self._parts, self._desk = name, windowing, keys, parts, desk
        self._window = windowing.window
        self._new: dict[int, pl.DataFrame] = {}

    def merge(self, keys: pl.DataFrame, hashes: Hashes, states: Mapping[str, pl.Series]) -> None:
        """Panes that have arrived, one row per key and pane, ascending by hash."""
        buckets = self._window.bucket_of(keys.get_column(PANE).to_numpy())
        for bucket in np.unique(buckets).tolist():
            here = buckets == bucket
            mask = pl.Series(here)
            mine = {name: states[name].filter(mask) for name in self._parts}
            refs = self._desk.segments.get(bucket_table(self._name, bucket), ())
            self._new[bucket] = upsert(refs, self._desk.open, keys.filter(mask), hashes[here], mine, self._parts, self._desk.key_groups)

    def to_store(self) -> Iterator[tuple[str, pl.DataFrame]]:
        for bucket, rows in self._new.items():
            if not self._windowing.is_over(bucket, self._desk.evict):
                yield bucket_table(self._name, bucket), rows

    def emit(self) -> pl.DataFrame:
        """The windows to emit: hash, keys, start and state. Ascending by hash."""
        late, evict, slack = self._desk.late, self._desk.evict, self._windowing.lateness
        if self._windowing.emit == "update":
            found = [self._touched(late - slack + 1, None)]
        else:
            found = [self._closing(late, evict)]
            if slack:  # a window that has closed and still takes rows is emitted again
                found.append(self._touched(late - slack + 1, late + 1))
        filled = [frame for frame in found if frame.height]
        if len(filled) < 2:
            return filled[0] if filled else found[0]
        return pl.concat(filled).sort(HASH, maintain_order=True)

    # -- windows that close ---------------------------------------------------------------------------------------

    def _closing(self, late: int, evict: int) -> pl.DataFrame:
        live = {b for table, refs in self._desk.segments.items() if refs and (b := bucket_of(table)) is not None} | set(self._new)
        due = [self._whole(bucket) for bucket in sorted(live) if self._windowing.is_due(bucket, late, evict)]
        return self._windows(pl.concat(due), late + 1, evict + 1) if due else self._nothing()

    def _whole(self, bucket: int) -> pl.DataFrame:
        """All panes of a bucket that are this slot's, with what has just arrived."""
        frames = [self._new[bucket]] if bucket in self._new else []
        refs = self._desk.segments.get(bucket_table(self._name, bucket), ())
        for ref in sorted(refs, key=lambda r: r.sequence, reverse=True):
            frame = self._desk.scan(ref).frame()
            mine = in_groups(frame.get_column(HASH).to_numpy(), ref.groups & self._desk.groups, self._desk.key_groups)
            frames.append(frame if mine.all() else frame.filter(pl.Series(mine)))
        return merge_segments(frames, (*self._keys, PANE), drop_deleted=True)

    def _windows(self, panes: pl.DataFrame, first: int, end: int | None) -> pl.DataFrame:
        """Windows with an end in [first, end), made of these panes."""
        starts = self._starts(panes, first, end)
        if not starts:
            return self._nothing()
        rows = pl.concat([panes.filter(pl.Series(mask)).with_columns(pl.Series(START, at[mask])) for mask, at in starts])
        if self._window.per_pane == 1:
            return rows.select(HASH, *self._keys, START, *self._parts).sort(HASH, maintain_order=True)
        return self._fold(rows.sort(PANE, maintain_order=True))

    def _fold(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Panes of each window, in the order of time, to one state."""
        keys = rows.select(*self._keys, START)
        groups = group_rows(keys, hash_panes(rows, self._keys, self._window, START))
        states = fold_states(rows, groups, self._parts)
        return pl.DataFrame([pl.Series(HASH, groups.hashes), *keys[groups.heads].get_columns(), *states.values()])

    def _starts(self, panes: pl.DataFrame, first: int, end: int | None) -> list[tuple[npt.NDArray[np.bool_], Times]]:
        """For the windows a pane is in, the newest first: whether each ends in [first, end), and where it begins."""
        window = self._window
        last = window.last_start(panes.get_column(PANE).to_numpy())
        if len(last) == 0:
            return []
        fewest = 0 if end is None else max(0, -(-(int(last.min()) + window.size - end + 1) // window.step))
        most = min(window.per_pane - 1, (int(last.max()) + window.size - first) // window.step)
        found = []
        for back in range(fewest, most + 1):
            starts = last - back * window.step
            ends = starts + window.size
            mask = ends >= first if end is None else (ends >= first) & (ends < end)
            if mask.any():
                found.append((mask, starts))
        return found

    # -- windows that have changed --------------------------------------------------------------------------------

    def _touched(self, first: int, end: int | None) -> pl.DataFrame:
        """Windows with an end in [first, end) of which a pane has changed."""
        if not self._new:
            return self._nothing()
        changed = pl.concat(list(self._new.values())).sort(HASH, maintain_order=True)
        if self._window.per_pane == 1:
            return self._windows(changed, first, end)
        starts = self._starts(changed, first, end)
        if not starts:
            return self._nothing()
        named = [changed.filter(pl.Series(mask)).with_columns(pl.Series(START, at[mask])).select(*self._keys, START) for mask, at in starts]
        windows = pl.concat(named).unique()
        wanted = [
            windows.with_columns((pl.col(START) + step * self._window.pane).alias(PANE))
            for step in range(self._window.size // self._window.pane)
        ]
        panes = self._look_up(pl.concat(wanted))
        return self._fold(panes.sort(PANE, maintain_order=True)) if panes.height else self._nothing()

    def _look_up(self, wanted: pl.DataFrame) -> pl.DataFrame:
        """The stored or just arrived panes of these windows: keys, start, pane and state."""
        found = []
        buckets = self._window.bucket_of(wanted.get_column(PANE).to_numpy())
        for bucket in np.unique(buckets).tolist():
            rows = wanted.filter(pl.Series(buckets == bucket))
            hashes = hash_panes(rows, self._keys, self._window)
            order = np.argsort(hashes, kind="stable")
            rows, hashes = rows[order], hashes[order]
            refs, open_segment = self._with_new(bucket)
            which, states = find(refs, open_segment, rows.select(*self._keys, PANE), hashes, self._desk.key_groups, list(self._parts))
            if len(which):
                found.append(rows[which].with_columns(list(states.values())))
        return pl.concat(found) if found else wanted[:0]

    def _with_new(self, bucket: int) -> tuple[tuple[SegmentRef, ...], Open]:
        """A bucket's segments and, as the newest of them, what has just arrived."""
        refs = self._desk.segments.get(bucket_table(self._name, bucket), ())
        if bucket not in self._new:
            return refs, self._desk.open
        fresh = Segment("", encode_segment(self._new[bucket]))
        newest = SegmentRef("", fresh.rows, 0, max((ref.sequence for ref in refs), default=0) + 1, self._desk.groups)
        return (*refs, newest), lambda ref, hashes: fresh if ref is newest else self._desk.open(ref, hashes)

    def _nothing(self) -> pl.DataFrame:
        return pl.DataFrame()


def evictions(windowed: Mapping[str, Windowing], manifest: Manifest, flush: bool = False) -> dict[str, int]:
    """Per operator, the mark at or below which windows close in the epoch after this manifest's."""
    return {name: FOREVER if flush else low(manifest.times, w.marks, w.delay, "mark") for name, w in windowed.items()}


def lates(windowed: Mapping[str, Windowing], manifest: Manifest, epoch: int) -> dict[str, int]:
    """Per operator, the mark below which everything had closed before an epoch: the next one, or the one after it."""
    which = "late" if epoch == manifest.epoch + 1 else "mark"
    return {name: low(manifest.times, w.marks, w.delay, which) for name, w in windowed.items()}


def over(windowed: Mapping[str, Windowing], tables: Iterable[str], evict: Mapping[str, int]) -> list[str]:
    """The tables that no window needs after an epoch that closes what these marks say."""
    found = []
    for name in tables:
        operator, bucket = operator_of(name), bucket_of(name)
        if bucket is not None and operator in windowed and windowed[operator].is_over(bucket, evict[operator]):
            found.append(name)
    return found


def anything_due(windowed: Mapping[str, Windowing], manifest: Manifest, late: Mapping[str, int], evict: Mapping[str, int]) -> bool:
    """Whether an epoch without input would have something to do."""
    for table in manifest.tables:
        operator, bucket = operator_of(table), bucket_of(table)
        if bucket is None or operator not in windowed:
            continue
        windowing = windowed[operator]
        closing = windowing.emit == "closed" and windowing.is_due(bucket, late[operator], evict[operator])
        if closing or windowing.is_over(bucket, evict[operator]):
            return True
    return False
