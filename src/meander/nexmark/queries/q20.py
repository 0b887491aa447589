"""q20, expand bids: every bid for an auction of category 10, with the auction's columns. Two streams, joined without a bound in time."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q20 = md.Flow("q20")
    bids = q20.source("bid", tables["bid"])
    bids = bids.select("auction", "bidder", "price", "channel", "url", "date_time AS bid_date_time", "extra AS bid_extra", name="bids")
    auctions = q20.source("auction", tables["auction"]).filter("category = 10", name="in_category")
    described = ("item_name", "description", "initial_bid", "reserve", "expires", "seller", "category")
    auctions = auctions.select("id", *described, "date_time AS auction_date_time", "extra AS auction_extra", name="auctions")
    joined = bids.join(auctions, left_on="auction", right_on="id", name="expanded")
    columns = ("auction", "bidder", "price", "channel", "url", "bid_date_time", "bid_extra", *described[:4], "auction_date_time")
    return joined.select(*columns, *described[4:], "auction_extra", name="result").sink("out", out)
