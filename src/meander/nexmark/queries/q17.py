"""q17, auction statistics: bids and prices per auction and day. Several aggregates over one column."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.nexmark.queries.price_ranges import counts, ranged


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q17 = md.Flow("q17")
    bids = q17.source("bid", tables["bid"])
    day = pl.col("date_time").dt.strftime("%Y-%m-%d").alias("day")
    by_range = bids.with_columns(day, *ranged("auction"), name="by_range")
    report = by_range.key_by("auction", "day").aggregate(
        *counts(),
        md.min("price").alias("min_price"),
        md.max("price").alias("max_price"),
        md.mean("price").alias("avg_price"),
        md.sum("price").alias("sum_price"),
        name="report",
    )
    return report.sink("out", out)
