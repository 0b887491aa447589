"""q13, bounded side input join: every bid with a value from a table that does not change."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def side_input() -> pl.DataFrame:
    """The suite's table: every key from 0 to 9,999, with itself as text."""
    return pl.DataFrame({"key": range(10_000)}).with_columns(pl.col("key").cast(pl.String).alias("value"))


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q13 = md.Flow("q13")
    bids = q13.source("bid", tables["bid"])
    keyed = bids.with_columns("auction % 10000 AS key", name="keyed")
    joined = keyed.join_static(side_input(), on="key", name="with_side_input")
    return joined.select("auction", "bidder", "price", "date_time", "value", name="result").sink("out", out)
