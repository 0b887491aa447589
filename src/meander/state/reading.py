"""Reading a flow's state from its store, beside a running flow or without one: the state is open data."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet

from meander.aggregates import Agg
from meander.errors import ConfigError, Corrupted, Retryable
from meander.plan.schemas import did_you_mean
from meander.state.hashing import in_groups
from meander.state.log import no_such_epoch, read_manifest
from meander.state.manifest import Manifest, Table, operator_of
from meander.state.segment import ALL, DELETED, HASH, LATEST, Segment, SegmentRef
from meander.state.stores.contract import Store, open_store
from meander.state.stores.folder import refuse_file
from meander.state.table import conform, merge_segments
from meander.state.values import ValueTable, lists_by_key

_ATTEMPTS = 5
_GIVE = "give what was given to flow.start(...)"


def read_state(store: str | Path, operator: str, epoch: int | None = None) -> pa.Table:
    """An operator's state as a table: its key columns and its finished values, at the newest epoch or a retained one.

    Example: ``md.read_state("state/", "totals").to_pandas()``.
    """
    opened = open_store(store)
    refuse_file(opened)
    return read_operator(opened, operator, epoch)


def read_operator(store: Store, operator: str, epoch: int | None = None) -> pa.Table:
    """``read_state`` on a store that is open already.

    A running flow may collect a segment between the manifest and the segment. Then the log has moved on, and the read starts again.
    """
    if epoch is not None and epoch < 1:
        raise ConfigError(f"store {store.url}: there is no epoch {epoch}: they are counted from 1; leave epoch out for the newest")
    missing, last = "", -1
    for _ in range(_ATTEMPTS):
        manifest = read_manifest(store, epoch)
        tables = _tables(store, manifest, operator)
        mapped = {name: map_segments(store, table) for name, table in tables.items()}
        gone = next((name for segments in mapped.values() for name, data in segments.items() if data is None), None)
        if gone is None:
            rows = {name: merge_rows(store, table, mapped[name], manifest.key_groups) for name, table in tables.items()}
            return _finish(store, manifest, operator, rows).to_arrow(compat_level=pl.CompatLevel.oldest())
        if manifest.position == last:  # the same manifest once more: it was not overtaken
            missing = gone
            break
        last = manifest.position
    if epoch is not None and epoch != read_manifest(store).epoch:
        raise no_such_epoch(store, epoch)
    if missing:
        raise _missing(store, missing)
    raise Retryable(f"store {store.url}: the flow moves on faster than its state can be read; try again, or retain more epochs")


def read_dead_letters(store: str | Path) -> pa.Table:
    """The rows that could not be processed: epoch, operator, position, reason and content. For the default dead-letter folder.

    Example: ``md.read_dead_letters("state/").to_pylist()``.
    """
    opened = open_store(store)
    folder = opened.local("dead_letters")
    if folder is None:
        raise ConfigError(
            f"store {opened.url} is no folder: read the folder that was the flow's dead_letters=, with pl.read_parquet('folder/*')"
        )
    if read_manifest(opened).position < 0:
        raise ConfigError(f"store {opened.url}: there is no flow in it; {_GIVE}")
    found = sorted(folder.glob("*.parquet")) if folder.exists() else []
    schema = pa.schema([("epoch", pa.int64()), *((n, pa.large_string()) for n in ("operator", "position", "reason", "content"))])
    tables = [pyarrow.parquet.read_table(path).cast(schema) for path in found]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _tables(store: Store, manifest: Manifest, operator: str) -> dict[str, Table]:
    """The operator's own table and those of its aggregates' values."""
    found = {name: table for name, table in manifest.tables.items() if operator_of(name) == operator}
    if found and operator_of(operator) == operator:
        return found
    if manifest.position < 0:
        raise ConfigError(f"store {store.url}: there is no flow in it; {_GIVE}")
    if manifest.epoch == 0 or operator in manifest.routing:
        raise ConfigError(f"store {store.url}: operator '{operator}' has no state yet at epoch {manifest.epoch}")
    known = sorted({operator_of(name) for name in manifest.tables})
    there = f"there are: {', '.join(known) or 'none'}{did_you_mean(operator, known)}"
    raise ConfigError(f"store {store.url}: there is no stateful operator '{operator}'; {there}")


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
            raise _missing(store, ref.name)
        segment = Segment(ref.name, data)
        frame = segment.frame() if table.time is None else segment.ending(table.time, table.floor, LATEST)
        frames.append(frame.filter(pl.Series(in_groups(frame.get_column(HASH).to_numpy(), ref.groups, key_groups))))
    if not frames:
        return pl.DataFrame()
    merged = merge_segments(frames, table.keys, drop_deleted=True)
    return merged.drop([c for c in ((DELETED,) if keep_hash else (HASH, DELETED)) if c in merged.columns])


def _newest_first(table: Table) -> list[SegmentRef]:
    return sorted(table.segments, key=lambda s: s.sequence, reverse=True)


def _missing(store: Store, name: str) -> Corrupted:
    return Corrupted(f"segment '{name}' is named by the manifest but is not in store {store.url}")


def _finish(store: Store, manifest: Manifest, operator: str, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """What is stored as people want to see it, by the reader that the plan recorded. Unpickles: a store is trusted like a checkpoint."""
    data = store.get(plan_name(manifest.plan["digest"]))
    if data is None:
        raise Corrupted(f"store {store.url}: the plan {manifest.plan['digest']} is missing")
    reader = pickle.loads(data)[operator]
    if hasattr(reader, "as_of"):  # what is open depends on how far event time has come
        reader = reader.as_of(manifest)
    shown: pl.DataFrame = reader.show(tables)
    return shown


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
    """Where the store keeps what readers need to know of a plan: how the state of each of its stateful operators is shown."""
    return f"plan/{digest}"
