"""q9, winning bids: every auction with the bid that won it. A join with a bound in the rows, then the best row of a key."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.nexmark.queries.winning import winning_bids

AUCTION = ("id", "item_name", "description", "initial_bid", "reserve", "date_time", "expires", "seller", "category", "extra")
BID = ("id AS auction", "bidder", "price", "date_time_right AS bid_date_time", "extra_right AS bid_extra")


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q9 = md.Flow("q9")
    return winning_bids(q9, tables).select(*AUCTION, *BID, name="result").sink("out", out)
