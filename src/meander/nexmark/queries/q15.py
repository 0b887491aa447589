"""q15, bidding statistics: bids, bidders and auctions per day, in all and by range of price. Exact distinct counts in one aggregate."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.nexmark.queries.price_ranges import counts, distinct, ranged


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q15 = md.Flow("q15")
    bids = q15.source("bid", tables["bid"])
    day = pl.col("date_time").dt.strftime("%Y-%m-%d").alias("day")
    by_range = bids.with_columns(day, *ranged("bidder"), *ranged("auction"), name="by_range")
    return by_range.key_by("day").aggregate(*counts(), *distinct("bidder"), *distinct("auction"), name="report").sink("out", out)
