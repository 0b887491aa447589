"""The winning bids, which q4, q6 and q9 begin with: a join within a bound that the auction itself has, and the best bid of each auction."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.source import Source

LONGEST = "10s"
"""No auction lasts longer. With the default workload none lasts longer than 333.2 ms; 10 s is right from 334 events per second on."""


def winning_bids(flow: md.Flow, tables: Mapping[str, Source]) -> md.Stream:
    """Every auction that got a bid while it was open, once, when no other bid can come: with its best bid."""
    auctions = flow.source("auction", tables["auction"]).watermark("date_time", grace="4s", name="auctions_in_time")
    bids = flow.source("bid", tables["bid"]).watermark("date_time", grace="4s", name="bids_in_time")
    bids = bids.select("auction", "bidder", "price", "date_time", "extra", name="bids")
    while_open = pl.col("date_time_right") <= pl.col("expires")
    offers = auctions.join(bids, left_on="id", right_on="auction", within=("0s", LONGEST), where=while_open, name="offers")
    # The time of an offer is its auction's: all offers for an auction are in one window.
    order = {"price": True, "date_time_right": False, "bidder": False}
    return offers.key_by("id").window(md.tumbling("10s")).top(1, by=list(order), descending=list(order.values()), name="winners")
