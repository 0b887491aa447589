"""Reading a flow's state from its store, beside a running flow or without one: the state is open data."""

from __future__ import annotations

import pickle
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet

from meander.errors import ConfigError, Corrupted
from meander.state.hashing import in_groups
from meander.state.log import read_manifest
from meander.state.manifest import Manifest, Table, operator_of
from meander.state.segment import DELETED, HASH, Segment
from meander.state.store import Store, open_store
from meander.state.table import merge_segments
from meander.state.values import ValueTable, lists_by_key

_ATTEMPTS = 5


def read_state(store: str | Path, operator: str, epoch: int | None = None) -> pa.Table:
    """An operator's state as a table: its key columns and its finished values, at the newest epoch or a retained one."""
    opened = open_store(store)
    for attempt in range(_ATTEMPTS):
        manifest = read_manifest(opened, epoch)
        try:
            return _read_table(opened, manifest, operator)
        except Corrupted:
            # A segment may have been collected between reading the manifest and the segment.
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def read_dead_letters(store: str | Path) -> pa.Table:
    """The rows that could not be processed: epoch, operator, position, reason and content. For the default dead-letter folder."""
    folder = open_store(store).local("dead_letters")
    if folder is None:
        raise ConfigError(
            f"store {store} is no folder: read the folder that was the flow's dead_letters=, with pl.read_parquet('folder/*')"
        )
    found = sorted(folder.glob("*.parquet")) if folder.exists() else []
    schema = pa.schema([("epoch", pa.int64()), *((n, pa.large_string()) for n in ("operator", "position", "reason", "content"))])
    tables = [pyarrow.parquet.read_table(path).cast(schema) for path in found]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _read_table(store: Store, manifest: Manifest, operator: str) -> pa.Table:
    table = manifest.tables.get(operator)
    if table is None:
        if manifest.position < 0:
            raise ConfigError(f"store {store.url}: there is no flow in it")
        if operator in manifest.routing:
            raise ConfigError(f"store {store.url}: operator '{operator}' has no state yet at epoch {manifest.epoch}")
        known = ", ".join(sorted({operator_of(name) for name in manifest.tables})) or "none"
        raise ConfigError(f"store {store.url}: there is no stateful operator '{operator}'; there are: {known}")
    rows = read_rows(store, table, manifest.key_groups)
    finished = _finish(store, manifest, operator, rows)
    return finished.to_arrow(compat_level=pl.CompatLevel.oldest())


def read_rows(store: Store, table: Table, key_groups: int) -> pl.DataFrame:
    """The newest row of every key, with state columns as stored."""
    frames = []
    for ref in sorted(table.segments, key=lambda s: s.sequence, reverse=True):
        data = store.map(ref.name)
        if data is None:
            raise Corrupted(f"segment '{ref.name}' is named by the manifest but is not in store {store.url}")
        frame = Segment(ref.name, data).frame()
        frames.append(frame.filter(pl.Series(in_groups(frame.get_column(HASH).to_numpy(), ref.groups, key_groups))))
    if not frames:
        return pl.DataFrame()
    merged = merge_segments(frames, table.keys, drop_deleted=True)
    return merged.drop([c for c in (HASH, DELETED) if c in merged.columns])


def _finish(store: Store, manifest: Manifest, operator: str, rows: pl.DataFrame) -> pl.DataFrame:
    """State columns to finished values, by the aggregates that the plan recorded. Unpickles: a store is trusted like a checkpoint."""
    data = store.get(plan_name(manifest.plan["digest"]))
    if data is None:
        raise Corrupted(f"store {store.url}: the plan {manifest.plan['digest']} is missing")
    keys, aggregates, schema = pickle.loads(data)[operator]
    for aggregate in aggregates:
        if aggregate.keeps == "list":
            rows = rows.with_columns(_lists(store, manifest, ValueTable.of(operator, keys, aggregate), rows, schema[aggregate.name]))
    return rows.select([pl.col(key) for key in keys] + [aggregate.finish() for aggregate in aggregates])


def _lists(store: Store, manifest: Manifest, values: ValueTable, rows: pl.DataFrame, dtype: pl.DataType) -> pl.Series:
    """Every key's list, from the table that its values are rows of."""
    empty = pl.lit([], dtype=dtype)
    if values.name not in manifest.tables:  # no key has a value yet
        return rows.select(empty.alias(values.values)).to_series()
    lists = lists_by_key(values, read_rows(store, manifest.tables[values.name], manifest.key_groups))
    joined = rows.select(values.keys).join(lists, on=list(values.keys), how="left", nulls_equal=True, maintain_order="left")
    return joined.get_column(values.values).fill_null(pl.select(empty).to_series())


def plan_name(digest: str) -> str:
    """Where the store keeps what readers need to know of a plan: keys, aggregates and output schemas of its stateful operators."""
    return f"plan/{digest}"
