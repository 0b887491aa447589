"""Compares the result of a query's run, from the files that it wrote, with the oracle's answer.

``output`` is the sink, ``results`` reads what it has published so far, and ``check`` compares: all of it through files, so that a run
may be killed and go on in another process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from meander.connect.partitioned import parquet
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.nexmark.answers import ANSWERS
from meander.nexmark.comparison import Difference, compare
from meander.nexmark.oracle import Table, answer, latest, with_processing_time
from meander.nexmark.queries.q10 import PARTITIONS
from meander.state.log import entries_after
from meander.state.manifest import Manifest
from meander.state.stores.opening import checked_store


def output(query: str, folder: str | os.PathLike[str]) -> Sink:
    """Where a query's results go: Parquet files, by day and minute for q10."""
    return parquet(folder, partition_by=PARTITIONS if query == "q10" else None)


def results(query: str, folder: str | os.PathLike[str]) -> pl.DataFrame | None:
    """The rows published in the folder; of an updating query, the last row of every key. None if
    there are none."""
    files = sorted(Path(folder).rglob("*.parquet"), key=lambda file: file.name)
    if not files:
        return None
    if query == "q10":
        columns = dict.fromkeys(PARTITIONS, pl.String())
        return pl.read_parquet(Path(folder), hive_partitioning=True, hive_schema=columns)
    return latest(pl.concat([pl.read_parquet(file) for file in files]), ANSWERS[query].key)


def check(query: str, folder: str | os.PathLike[str], tables: Mapping[str, Table]) -> tuple[int, Difference | None]:
    """The number of rows that the oracle expects, and the difference to the published ones; None if
    there is none."""
    expected = answer(query, tables)
    found = results(query, folder)
    return expected.num_rows, compare(expected.slice(0, 0) if found is None else found, expected)


def taken_by(store: str | os.PathLike[str], source: str, read: Source) -> pl.DataFrame:
    """A source's rows with the times at which a run took them, from its log; the run must have retained all of its epochs."""
    epochs = [entry for entry in entries_after(checked_store(os.fspath(store)), Manifest()) if entry["kind"] == "epoch"]
    return with_processing_time(read, [(e["now"], [payload for name, payload in e["splits"] if name == source]) for e in epochs])
