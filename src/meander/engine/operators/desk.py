"""What an operator's task has at hand: the times of the epoch, and the operator's tables, to read and to write.

Reads see what was written at the same desk. Nothing is in the store, and nobody else sees it, before the task's stage has put it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from meander.engine.evaluate import DeadLetter
from meander.plan.windows import FOREVER, NEVER
from meander.state.grouping import Index
from meander.state.hashing import Hashes, in_groups
from meander.state.manifest import bucket_of, whole_table
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment
from meander.state.table import Columns, Open, find, find_rows, merge_segments


@dataclass
class Desk:
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
    segments: Mapping[str, tuple[SegmentRef, ...]]
    open: Open
    scan_segment: Callable[[SegmentRef], Segment]
    expect: Callable[[Sequence[SegmentRef], Hashes], None] = lambda refs, hashes: None
    """Say which hashes will be looked up in which segments: what is elsewhere comes in one go."""
    lap: Callable[[str], None] = lambda part: None
    """Say what the time since the last call was spent on."""
    epoch: int = 0
    """Its number: rows that are kept as they came are told apart by when they came."""
    strict: bool = False
    """Whether bad input stops the flow, instead of becoming dead letters."""
    dead: list[DeadLetter] = field(default_factory=list)
    written: dict[str, pl.DataFrame] = field(default_factory=dict)
    closed: int = NEVER
    """In a flush: the last of what it closes, of which ``floor`` says when it would be over. To this operator it is from now on as if that
    mark was reached."""
    _fresh: dict[str, tuple[SegmentRef, Segment]] = field(default_factory=dict)

    def tables(self) -> list[str]:
        """The operator's tables that have rows for this slot, with those just written."""
        stored = (name for name, refs in self.segments.items() if refs)
        return sorted({*stored, *self.written})

    def buckets(self, table: str) -> Iterator[tuple[int, str]]:
        """The buckets of a table, by time."""
        found = [(number, name) for name in self.tables() if (number := bucket_of(name)) is not None and whole_table(name) == table]
        yield from sorted(found)

    @property
    def flushes(self) -> bool:
        """Whether this epoch closes everything, and not what a mark says."""
        return self.evict == FOREVER

    def largest(self, table: str, keys: Sequence[str], column: str) -> int | None:
        """The largest value of a column in the last bucket of a table that has rows for this slot; None where none has."""
        for _, bucket in reversed(list(self.buckets(table))):
            rows = self.scan(bucket, keys)
            if rows.height:
                return int(rows.get_column(column).to_numpy().max())
        return None

    def write(self, table: str, rows: pl.DataFrame) -> None:
        """New rows of a table, ascending by ``__hash``; where they have a column ``__deleted``, deletions too. Once per table and epoch."""
        assert table not in self.written, f"table '{table}' is written twice in one epoch"
        if rows.height:
            self.written[table] = rows

    def stored(self, table: str, hashes: Hashes | None = None) -> tuple[tuple[SegmentRef, ...], Open]:
        """A table's runs and how to open them. ``hashes`` are those that will be looked up in all of them, where that is known."""
        refs = self.segments.get(table, ())
        if hashes is not None and refs:
            self.expect(refs, hashes)
        if table not in self.written:
            return refs, self.open
        if table not in self._fresh:
            segment = Segment("", encode_segment(self.written[table]))
            newest = max((ref.sequence for ref in refs), default=0) + 1
            self._fresh[table] = (SegmentRef("", segment.rows, 0, newest, self.groups), segment)
        mine, fresh = self._fresh[table]
        return (*refs, mine), lambda ref, hashes: fresh if ref is mine else self.open(ref, hashes)

    def find(self, table: str, keys: pl.DataFrame, hashes: Hashes, columns: Columns) -> tuple[Index, dict[str, pl.Series]]:
        """The rows of these keys (ascending by hash; all columns that tell rows apart): which keys have one, and ``columns`` of it."""
        return find(*self.stored(table, hashes), keys, hashes, self.key_groups, columns)

    def find_rows(
        self, table: str, keys: pl.DataFrame, hashes: Hashes, apart: Sequence[str], columns: Sequence[str]
    ) -> tuple[Index, pl.DataFrame]:
        """All rows of these keys (ascending by hash) in a table where a key has many, told ``apart`` by more columns: whose, and both.

        All rows of a key must have the hash that the key is looked up by.
        """
        return find_rows(*self.stored(table, hashes), keys, hashes, self.key_groups, apart, columns)

    def scan(self, table: str, keys: Sequence[str], types: Mapping[str, pl.DataType] | None = None) -> pl.DataFrame:
        """All rows of a table that are this slot's. For buckets that are due: whatever else there is must not be read whole.

        ``types`` are the columns as this version of the plan has them, for operators that go on with the state of older versions:
        otherwise the columns are those of the slot's newest segment, and two slots can have different ones.
        """
        frames = [self.written[table]] if table in self.written else []
        for ref in sorted(self.segments.get(table, ()), key=lambda r: r.sequence, reverse=True):
            frame = self.scan_segment(ref).frame()
            mine = in_groups(frame.get_column(HASH).to_numpy(), ref.groups & self.groups, self.key_groups)
            frames.append(frame if mine.all() else frame.filter(pl.Series(mine)))
        like = None if types is None else {HASH: pl.UInt64(), **types}
        return merge_segments(frames, keys, drop_deleted=True, like=like)
