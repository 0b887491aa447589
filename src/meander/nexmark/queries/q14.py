"""q14, calculation: bids of a range of prices, with the time of day in words and a letter counted. A function of one's own over frames."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source

TIME_OF_DAY = """
    CASE
        WHEN hour >= 8 AND hour <= 18 THEN 'dayTime'
        WHEN hour <= 6 OR hour >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END AS bid_time_type"""


def count_letter(frame: pl.DataFrame) -> pl.DataFrame:
    """How often ``c`` is in ``extra``: the user's own function of the suite."""
    return frame.with_columns(pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64).alias("c_counts"))


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q14 = md.Flow("q14")
    bids = q14.source("bid", tables["bid"])
    euros = bids.with_columns("price * 0.908 AS price", pl.col("date_time").dt.hour().alias("hour"), name="in_euros")
    chosen = euros.filter("price > 1000000 AND price < 50000000", name="in_range")
    counted = chosen.map_batches(count_letter, name="count_letter", deterministic=True)
    result = counted.select("auction", "bidder", "price", TIME_OF_DAY, "date_time", "extra", "c_counts", name="result")
    return result.sink("out", out)
