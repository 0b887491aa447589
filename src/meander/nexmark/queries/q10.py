"""q10, log to file system: every bid, in folders by day and minute of its time: ``md.parquet(folder, partition_by=PARTITIONS)``."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source

PARTITIONS = ("dt", "hm")
"""The columns that make the folders."""


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q10 = md.Flow("q10")
    bids = q10.source("bid", tables["bid"])
    time = pl.col("date_time").dt
    folders = (time.strftime("%Y-%m-%d").alias("dt"), time.strftime("%H:%M").alias("hm"))
    return bids.select("auction", "bidder", "price", "date_time", "extra", *folders, name="result").sink("out", out)
