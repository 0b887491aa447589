"""Tables of values, for aggregates that keep any number of values of a key. One row per value.

A key's own row only counts them, so that an epoch's cost for a key with a million values follows
the values that it adds. There are two kinds, both in ordinary segments, without special treatment
by lookups and compaction:

- a *set* has one row per key and different value. Its rows are spread over the key's key group by a hash of key and value, so that
  one value of a key is found like a key of its own.
- a *list* has one row per value, numbered within its key. All rows of a key have the key's hash and stand together in a segment, so
  that the list is read back as a few stretches of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa

from meander.aggregates import Agg, Part
from meander.state.grouping import Index, group_rows
from meander.state.hashing import Hashes, hash_keys, spread_within_groups
from meander.state.segment import HASH, SegmentRef
from meander.state.table import Open, find, find_all

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class ValueTable:
    """The values of one aggregate of one operator."""

    name: str
    label: str
    keys: tuple[str, ...]
    is_list: bool

    @staticmethod
    def of(operator: str, keys: tuple[str, ...], agg: Agg) -> ValueTable:
        return ValueTable(f"{operator}.{quote(agg.name, safe='')}", agg.name, keys, agg.keeps == "list")

    @property
    def values(self) -> str:
        """The part that holds them on their way: a list per key."""
        return f"{self.label}.values"

    @property
    def count(self) -> str:
        """The part that the key's own row has instead."""
        return f"{self.label}.n"

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell its rows apart."""
        return (*self.keys, self.nth if self.is_list else self.value)

    @property
    def nth(self) -> str:
        return f"{self.label}.nth"

    @property
    def value(self) -> str:
        return f"{self.label}.value"

    def count_part(self) -> Part:
        return Part(pl.Int64(), pl.lit(0, pl.Int64), pl.col(self.count).sum(), "sum")


def lengths(lists: pl.Series) -> Numbers:
    return lists.list.len().fill_null(0).cast(pl.Int64).to_numpy()


def new_members(
    table: ValueTable, refs: Sequence[SegmentRef], open_segment: Open, keys: pl.DataFrame, hashes: Hashes, lists: pl.Series, key_groups: int
) -> tuple[Numbers, pl.DataFrame]:
    """The values that each key's set does not have yet: their number, and the rows to add."""
    owners, values = _exploded(lists)
    pairs = keys[owners].with_columns(values.alias(table.value))
    spread = spread_within_groups(hashes[owners], hash_keys(pairs.with_columns(_hashable(values).alias(table.value))))
    groups = group_rows(pairs, spread)
    pairs, owners = pairs[groups.heads], owners[groups.heads]
    new = np.ones(len(owners), np.bool_)
    new[find(refs, open_segment, pairs, groups.hashes, key_groups, ())[0]] = False
    counts = np.bincount(owners[new], minlength=len(hashes)).astype(np.int64)
    rows = pairs.filter(pl.Series(new))
    return counts, pl.DataFrame([pl.Series(HASH, groups.hashes[new]), *rows.get_columns()])


def numbered(table: ValueTable, keys: pl.DataFrame, hashes: Hashes, lists: pl.Series, totals: Numbers) -> pl.DataFrame:
    """The rows to add to lists that have ``totals`` values once they are added. Keys ascend by hash, and so do the rows."""
    owners, values = _exploded(lists)
    sizes = lengths(lists)
    ends = np.cumsum(sizes)
    nth = np.arange(len(owners)) - (ends - sizes)[owners] + (totals - sizes)[owners]
    return pl.DataFrame(
        [pl.Series(HASH, hashes[owners]), *keys[owners].get_columns(), pl.Series(table.nth, nth, pl.Int64), values.alias(table.value)]
    )


def whole_lists(
    table: ValueTable,
    refs: Sequence[SegmentRef],
    open_segment: Open,
    keys: pl.DataFrame,
    hashes: Hashes,
    lists: pl.Series,
    totals: Numbers,
    key_groups: int,
) -> pl.Series:
    """Every key's list from its first value to those just added."""
    longer = np.flatnonzero(totals > lengths(lists))
    added, values = _exploded(lists)
    if len(longer) == 0:
        return _implode(table.values, added, values, np.arange(len(added)), len(hashes), lists.dtype)
    which, stored = find_all(
        refs, open_segment, keys[longer], hashes[longer], key_groups, {table.nth: pl.Int64(), table.value: values.dtype}
    )
    before = longer[which]
    # Stored values come first within a key, by number; added values follow in their order.
    nth = np.concatenate([stored[table.nth].to_numpy(), np.iinfo(np.int64).max - len(added) + np.arange(len(added))])
    return _implode(table.values, np.concatenate([before, added]), pl.concat([stored[table.value], values]), nth, len(hashes), lists.dtype)


def lists_by_key(table: ValueTable, rows: pl.DataFrame) -> pl.DataFrame:
    """All rows of a list table to one list per key. A reader's work."""
    hashes = hash_keys(rows.select(table.keys))
    groups = group_rows(rows.select(table.keys), hashes)
    owners = np.empty(rows.height, np.intp)
    owners[groups.order] = groups.ids().to_numpy()
    nth, values = rows.get_column(table.nth).to_numpy(), rows.get_column(table.value)
    lists = _implode(table.values, owners, values, nth, len(groups.starts), pl.List(values.dtype))
    return rows.select(table.keys)[groups.heads].with_columns(lists)


def _exploded(lists: pl.Series) -> tuple[Index, pl.Series]:
    """All values of all lists, and the number of the list each is in."""
    filled = lists.filter(lists.list.len().fill_null(0) > 0)
    return np.repeat(np.arange(len(lists)), lengths(lists)), filled.explode()


def _implode(name: str, owners: Index, values: pl.Series, nth: Numbers, count: int, dtype: pl.DataType) -> pl.Series:
    ordered = values.gather(np.lexsort((nth, owners))).to_arrow(compat_level=pl.CompatLevel.oldest())
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int64)
    return pl.Series(name, pl.from_arrow(pa.LargeListArray.from_arrays(offsets, ordered)), dtype=dtype)


def _hashable(values: pl.Series) -> pl.Series:
    """Decimals have no hash of their own; as text they are one to one, since a column has one scale."""
    return values.cast(pl.String) if values.dtype.is_decimal() else values
