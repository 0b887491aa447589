"""The workspace of an operator's task: the times of the epoch, and the operator's tables, to read
and to write.

Reads see what was written in the same workspace. Nobody else sees it before the task's stage has put it into the
store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from meander.plan.windows import FOREVER, NEVER
from meander.state.grouping import Index
from meander.state.hashing import Hashes, in_groups
from meander.state.segment import HASH, LATEST, SOONEST, Segment, SegmentRef, Times, encode_segment, ends_in
from meander.state.table import Columns, Kept, Open, Reach, find, find_all, find_rows, merge_segments
from meander.task.evaluate import DeadLetter


@dataclass
class Workspace:
    """One operator in one epoch, in one slot."""

    operator: str
    late: int
    """The mark that had been reached before this epoch, in microseconds; by the clock, the last decision's time."""
    evict: int
    """The mark up to which things close in this epoch."""
    now: int
    """The decision's time. There is no other clock."""
    groups: int
    """This slot's key groups, as bits."""
    key_groups: int
    kept: Mapping[str, Kept]
    """The operator's tables."""
    segments: Mapping[str, tuple[SegmentRef, ...]]
    floors: Mapping[str, int]
    """Of tables whose rows end, up to where they are over."""
    open: Open
    scan_segment: Callable[[SegmentRef], Segment]
    expect: Callable[[Sequence[SegmentRef], Hashes], None] = lambda refs, hashes: None
    """Announce the hashes that will be looked up in segments: keys from other executors are then
    fetched in one request."""
    lap: Callable[[str], None] = lambda part: None
    """Say what the time since the last call was spent on."""
    epoch: int = 0
    """The number of the epoch: it identifies rows that are stored as they came."""
    strict: bool = False
    """Whether bad input stops the flow, instead of becoming dead letters."""
    dead: list[DeadLetter] = field(default_factory=list)
    written: dict[str, pl.DataFrame] = field(default_factory=dict)
    closed: int = NEVER
    """In a flush: the last time that it closes; ``floor`` gives the time at which its rows are
    over. For this operator the mark counts as reached from now on."""
    quiet: Mapping[str, int] = field(default_factory=dict)
    """Of tables whose rows end, up to where none does, where that is known."""
    next_ends: dict[str, int] = field(default_factory=dict)
    """Of tables that were asked: when the next row of this slot ends that was there before the epoch."""
    _fresh: dict[str, tuple[SegmentRef, Segment]] = field(default_factory=dict)

    @property
    def flushes(self) -> bool:
        """Whether this epoch closes everything, and not what a mark says."""
        return self.evict == FOREVER

    def largest(self, table: str) -> int | None:
        """The last time at which a row of a table ends; None where it has none. Reads the whole table: for a flush."""
        rows = self.scan(table)
        return int(rows.get_column(self.kept[table].ends).to_numpy().max()) if rows.height else None

    def write(self, table: str, rows: pl.DataFrame) -> None:
        """New rows of a table, ascending by ``__hash``; where they have a column ``__deleted``, deletions too. Once per table and epoch."""
        assert table not in self.written, f"table '{table}' is written twice in one epoch"
        if rows.height:
            self.written[table] = rows

    def reach(self, table: str, first: Times | None = None, last: Times | None = None) -> Reach | None:
        """The reach of a lookup: rows that are not over and, for each key, end in [first, last]."""
        time = self.kept[table].time
        return None if time is None else Reach(time, self.floors.get(table, SOONEST), first, last)

    def stored(self, table: str, hashes: Hashes | None = None, reach: Reach | None = None) -> tuple[tuple[SegmentRef, ...], Open]:
        """A table's runs and how to open them. ``hashes`` are those that will be looked up in all of them, where that is known."""
        refs = self.segments.get(table, ())
        if reach is not None:
            begin = SOONEST if reach.first is None or len(reach.first) == 0 else int(reach.first.min())
            end = LATEST if reach.last is None or len(reach.last) == 0 else int(reach.last.max())
            refs = tuple(ref for ref in refs if ref.last_end > reach.floor and ref.last_end >= begin and ref.first_end <= end)
        if hashes is not None and refs:
            self.expect(refs, hashes)
        if table not in self.written:
            return refs, self.open
        if table not in self._fresh:
            data = encode_segment(self.written[table], time=self.kept[table].time)
            segment = Segment("", data)
            newest = max((ref.sequence for ref in self.segments.get(table, ())), default=0) + 1
            self._fresh[table] = (SegmentRef("", segment.rows, 0, newest, self.groups, ends_in(segment.chapters)), segment)
        mine, fresh = self._fresh[table]
        return (*refs, mine), lambda ref, hashes: fresh if ref is mine else self.open(ref, hashes)

    def find(
        self,
        table: str,
        keys: pl.DataFrame,
        hashes: Hashes,
        columns: Columns,
        first: Times | None = None,
        last: Times | None = None,
    ) -> tuple[Index, dict[str, pl.Series]]:
        """The rows of these keys (ascending by hash; all columns that tell rows apart): which keys have one, and ``columns`` of it.

        ``first`` and ``last`` say for each key when its row can end, where that is known.
        """
        reach = self.reach(table, first, last)
        return find(*self.stored(table, hashes, reach), keys, hashes, self.key_groups, columns, reach)

    def find_rows(
        self,
        table: str,
        keys: pl.DataFrame,
        hashes: Hashes,
        apart: Sequence[str],
        columns: Sequence[str],
        first: Times | None = None,
        last: Times | None = None,
    ) -> tuple[Index, pl.DataFrame]:
        """All rows of these keys (ascending by hash) in a table where a key has many, told ``apart`` by more columns: whose, and both.

        All rows of a key must have the hash that the key is looked up by.
        """
        reach = self.reach(table, first, last)
        return find_rows(*self.stored(table, hashes, reach), keys, hashes, self.key_groups, apart, columns, reach)

    def find_all(
        self,
        table: str,
        keys: pl.DataFrame,
        hashes: Hashes,
        columns: Columns,
        first: Times | None = None,
        last: Times | None = None,
    ) -> tuple[Index, dict[str, pl.Series]]:
        """The same where rows are added and never replaced. A key may be asked for several times, if the stretches of time do not meet."""
        reach = self.reach(table, first, last)
        return find_all(*self.stored(table, hashes, reach), keys, hashes, self.key_groups, columns, reach)

    def next_end(self, table: str, after: int) -> int:
        """The first time after this one at which a row of a table may end that was there before the epoch. Opens a segment only where
        rows of it have ended and others have not.
        """
        if (known := self.quiet.get(table, SOONEST)) > after:
            return known
        found = LATEST
        for ref in self.segments.get(table, ()):
            if ref.first_end > after:
                found = min(found, ref.first_end)
            elif ref.last_end > after:
                found = min(found, self.scan_segment(ref).next_end(self.kept[table].ends, after))
        return found

    def scan(self, table: str, types: Mapping[str, pl.DataType] | None = None) -> pl.DataFrame:
        """All rows of a table that are this slot's and are not over. For tables that are read whole; otherwise there is ``ending``."""
        return self.ending(table, SOONEST, LATEST, types)

    def ending(
        self, table: str, above: int, upto: int, types: Mapping[str, pl.DataType] | None = None, *, stored: bool = True
    ) -> pl.DataFrame:
        """This slot's rows of a table that are not over, and that end above one time and not above
        another. Reads little else.

        ``types`` are the columns by this version of the plan, for operators that continue the state
        of older versions: otherwise the columns are those of the slot's newest segment, and two
        slots can have different ones. Without ``stored``: only rows written in this workspace.
        """
        kept, like = self.kept[table], None if types is None else {HASH: pl.UInt64(), **types}
        above = max(above, self.floors.get(table, SOONEST))
        frames = []
        if table in self.written:
            rows = self.written[table]
            frames.append(rows if kept.time is None else rows.filter(pl.col(kept.time).is_between(above, upto, closed="right")))
        refs = self.segments.get(table, ()) if stored else ()
        for ref in sorted(refs, key=lambda r: r.sequence, reverse=True):
            if ref.last_end <= above or ref.first_end > upto:
                continue
            segment = self.scan_segment(ref)
            frame = segment.frame() if kept.time is None else segment.ending(kept.time, above, upto)
            mine = in_groups(frame.get_column(HASH).to_numpy(), ref.groups & self.groups, self.key_groups)
            frames.append(frame if mine.all() else frame.filter(pl.Series(mine)))
        if not frames:
            return pl.DataFrame() if like is None else pl.DataFrame(schema=like)
        return merge_segments(frames, kept.keys, drop_deleted=True, like=like)
