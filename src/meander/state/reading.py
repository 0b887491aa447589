"""Rows of state from a store, beside a running flow or without one: the state is open data. ``task/reading.py`` finishes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet

from meander.aggregates import Agg
from meander.errors import ConfigError, Corrupted
from meander.state.formats import DEAD_LETTERS
from meander.state.hashing import in_groups
from meander.state.log import read_manifest
from meander.state.manifest import Table
from meander.state.segment import ALL, DELETED, HASH, LATEST, Segment, SegmentRef
from meander.state.stores.contract import Store
from meander.state.stores.opening import checked_store
from meander.state.table import conform, merge_segments
from meander.state.values import ValueTable, lists_by_key
from meander.stored import stored


def read_dead_letters(store: str | Path) -> pa.Table:
    """The rows that could not be processed: epoch, operator, position, reason and content. For the default dead-letter folder.

    Example: ``md.read_dead_letters("state/").to_pylist()``.
    """
    opened = checked_store(store)
    folder = opened.local("dead_letters")
    if folder is None:
        raise ConfigError(
            f"store {opened.url} is no folder: read the folder that was the flow's dead_letters=, with pl.read_parquet('folder/*')"
        )
    if read_manifest(opened).position < 0:
        raise ConfigError(f"store {opened.url}: there is no flow in it; give what was given to flow.start(...)")
    found = sorted(folder.glob("*.parquet")) if folder.exists() else []
    schema = pa.schema([("epoch", pa.int64()), *((n, pa.large_string()) for n in ("operator", "position", "reason", "content"))])
    tables = []
    for path in found:
        with pyarrow.parquet.ParquetFile(path) as file:
            DEAD_LETTERS.in_metadata(file.metadata.metadata, path.name)
            tables.append(file.read(schema.names).cast(schema))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def read_rows(store: Store, table: Table, key_groups: int) -> pl.DataFrame:
    """The newest row of every key, with state columns as stored."""
    return merge_rows(store, table, map_segments(store, table), key_groups)


def map_segments(store: Store, table: Table) -> dict[str, pa.Buffer | None]:
    """Every segment of a table, newest first; None for one that is not in the store.

    All at once and before anything is done with them: in a folder, a mapped file stays readable after it was collected.
    """
    return {ref.name: store.map(ref.name) for ref in _newest_first(table)}


def merge_rows(
    store: Store, table: Table, mapped: Mapping[str, pa.Buffer | None], key_groups: int, keep_hash: bool = False
) -> pl.DataFrame:
    """The newest row of every key in a table's mapped segments, ascending by hash."""
    frames = []
    for ref in _newest_first(table):
        data = mapped[ref.name]
        if data is None:
            raise missing_segment(store, ref.name)
        segment = Segment(ref.name, data)
        frame = segment.frame() if table.time is None else segment.ending(table.time, table.floor, LATEST)
        frames.append(frame.filter(pl.Series(in_groups(frame.get_column(HASH).to_numpy(), ref.groups, key_groups))))
    if not frames:
        return pl.DataFrame()
    merged = merge_segments(frames, table.keys, drop_deleted=True)
    return merged.drop([c for c in ((DELETED,) if keep_hash else (HASH, DELETED)) if c in merged.columns])


def _newest_first(table: Table) -> list[SegmentRef]:
    return sorted(table.segments, key=lambda s: s.sequence, reverse=True)


def missing_segment(store: Store, name: str) -> Corrupted:
    return Corrupted(f"segment '{name}' is named by the manifest but is not in store {store.url}")


@stored("aggregate_state", called={"aggregates": "aggregates"})
@dataclass(frozen=True)
class AggregateReader:
    """Shows an aggregate's keys and finished values."""

    operator: str
    keys: tuple[str, ...]
    aggregates: tuple[Agg, ...]
    schema: pl.Schema
    parts: Mapping[str, pl.DataType] = field(default_factory=dict)
    """The state columns: what is stored may be of an older plan."""

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        rows = tables[self.operator]
        if self.parts:
            rows = conform(rows, {**{key: self.schema.get(key, pl.Int8()) for key in self.keys}, **self.parts})
        for aggregate in self.aggregates:
            if aggregate.keeps == "list":
                values = ValueTable.of(self.operator, self.keys, aggregate)
                rows = rows.with_columns(_lists(values, rows, tables.get(values.name), self.schema[aggregate.name]))
        return rows.select([pl.col(key) for key in self.keys if key != ALL] + [aggregate.finish() for aggregate in self.aggregates])


def _lists(table: ValueTable, rows: pl.DataFrame, values: pl.DataFrame | None, dtype: pl.DataType) -> pl.Series:
    """Every key's list, from the table that its values are rows of."""
    empty = pl.lit([], dtype=dtype)
    if values is None:  # no key has a value yet
        return rows.select(empty.alias(table.values)).to_series()
    lists = lists_by_key(table, values).with_columns(pl.col(table.values).cast(dtype))
    joined = rows.select(table.keys).join(lists, on=list(table.keys), how="left", nulls_equal=True, maintain_order="left")
    return joined.get_column(table.values).fill_null(pl.select(empty).to_series())


def plan_record_name(digest: str) -> str:
    """Where the store keeps a plan as plain data: to say what is different in a flow that does not belong to it."""
    return f"plan/{digest}.json"


def plan_name(digest: str) -> str:
    """Where the store keeps how the state of each of a plan's stateful operators is shown: see ``task/reading.py``."""
    return f"plan/{digest}"
