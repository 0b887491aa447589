"""q21, add channel id: bids whose channel has an id, a known one or one from the address. A regular expression and a CASE."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source

CHANNEL_ID = """
    CASE lower(channel)
        WHEN 'apple' THEN '0'
        WHEN 'google' THEN '1'
        WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3'
        ELSE in_url
    END AS channel_id"""


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q21 = md.Flow("q21")
    bids = q21.source("bid", tables["bid"])
    # Null where the address has none.
    searched = bids.with_columns(pl.col("url").str.extract(r"(&|^)channel_id=([^&]*)", 2).alias("in_url"), name="search_url")
    named = searched.select("auction", "bidder", "price", "channel", CHANNEL_ID, name="channel_id")
    return named.filter("channel_id IS NOT NULL", name="with_id").sink("out", out)
