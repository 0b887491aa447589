"""The oracle: the right answer of a Nexmark query over given events, computed by DuckDB.

It shares no code with the flows: SQL over whole tables on one side, a stream in epochs on the other. Two queries need more than the
events. q12 windows bids by processing time, so its ``bid`` table has a column ``p_time``: the ``now`` of the decision by which a run took
the row, which the run's log has and ``with_processing_time`` puts beside the rows. q13 joins ``side_input``, which is the suite's (key i,
value "i") unless a table of that name is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import duckdb
import polars as pl
import pyarrow as pa

from meander.connect.source import Source
from meander.errors import ConfigError
from meander.nexmark.answers import ANSWERS, MACROS

QUERIES = tuple(ANSWERS)
SIDE_INPUT_ROWS = 10_000

Table: TypeAlias = "pa.Table | pl.DataFrame | str | os.PathLike[str]"
"""Rows in memory, or Parquet: a file, or a folder of files."""


def answer(query: str, tables: Mapping[str, Table] | str | os.PathLike[str]) -> pa.Table:
    """The result of ``query`` ("q0" to "q22") over the tables ``person``, ``auction`` and ``bid``, as far as it reads them.

    ``tables`` may also be the folder that ``write_files`` wrote. Windows are all closed, and of an updating query each key's last value
    is given; the order of rows means nothing.
    """
    if query not in ANSWERS:
        raise ConfigError(f"answer({query!r}): there is no such query; there are {', '.join(QUERIES)}")
    if isinstance(tables, str | os.PathLike):
        folder = Path(tables)
        tables = {place.name: place for place in sorted(folder.iterdir()) if place.is_dir()}
    with duckdb.connect() as connection:
        connection.execute(MACROS)
        for name in ANSWERS[query].tables:
            if name == "side_input" and name not in tables:
                _register(connection, name, side_input())
            elif name in tables:
                _register(connection, name, tables[name])
            else:
                raise ConfigError(f"answer({query!r}): it reads the table {name!r}, and there are only {', '.join(tables) or 'none'}")
        if query == "q12" and "p_time" not in connection.sql("SELECT * FROM bid LIMIT 0").columns:
            raise ConfigError(
                "answer('q12'): the table 'bid' has no column 'p_time'; q12 is by processing time, so give each row the time at which "
                "the run took it"
            )
        return cast(pa.Table, connection.sql(ANSWERS[query].sql).to_arrow_table())


def side_input(rows: int = SIDE_INPUT_ROWS) -> pa.Table:
    """The bounded table that q13 joins: every key from 0 on, with itself as text."""
    keys = pl.int_range(rows, eager=True).alias("key")
    return _arrow(pl.DataFrame([keys, keys.cast(pl.String).alias("value")]))


def with_processing_time(source: Source, decisions: Iterable[tuple[float, Sequence[dict[str, Any]]]]) -> pl.DataFrame:
    """A source's rows as a run took them, with ``p_time``.

    A decision is an epoch's ``now`` and the payloads of this source's splits, both as the log has them.
    """
    frames = [source.schema().to_frame().with_columns(pl.lit(None, pl.Datetime("us")).alias("p_time"))]
    for now, payloads in decisions:
        taken = pl.lit(int(now * 1e6)).cast(pl.Datetime("us")).alias("p_time")
        frames += [source.read(payload).frame.with_columns(taken) for payload in payloads]
    return pl.concat(frames)


def latest(results: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The last row of every key, from a stream of results in the order in which they were published; all rows where there is no key."""
    return results.unique(key, keep="last", maintain_order=True) if key else results


def _register(connection: duckdb.DuckDBPyConnection, name: str, table: Table) -> None:
    if isinstance(table, pl.DataFrame):
        table = _arrow(table)
    if isinstance(table, pa.Table):
        connection.register(name, table)
        return
    path = Path(table)
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(f"table {name!r}: there is no Parquet file at {path}")
    connection.register(name, connection.read_parquet([os.fspath(file) for file in files]))


def _arrow(frame: pl.DataFrame) -> pa.Table:
    return cast(pa.Table, frame.to_arrow(compat_level=pl.CompatLevel.oldest()))
