"""q16, channel statistics: q15's report per channel and day, and the last minute seen. An aggregate with a key of two columns."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.nexmark.queries.price_ranges import counts, distinct, ranged


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q16 = md.Flow("q16")
    bids = q16.source("bid", tables["bid"])
    time = pl.col("date_time").dt
    times = (time.strftime("%Y-%m-%d").alias("day"), time.strftime("%H:%M").alias("time"))
    by_range = bids.with_columns(*times, *ranged("bidder"), *ranged("auction"), name="by_range")
    report = by_range.key_by("channel", "day").aggregate(
        md.max("time").alias("minute"), *counts(), *distinct("bidder"), *distinct("auction"), name="report"
    )
    return report.sink("out", out)
