"""q19, auction top ten: the ten highest bids of every auction. Ranked rows per key, of which only those that changed go out."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q19 = md.Flow("q19")
    bids = q19.source("bid", tables["bid"])
    # Of equal prices the earlier bid is better.
    order = {"price": True, "date_time": False, "bidder": False}
    best = bids.key_by("auction").top(10, by=list(order), descending=list(order.values()), name="best")
    changed = best.filter("changed", name="changed_ranks")
    columns = ("auction", "bidder", "price", "channel", "url", "date_time", "extra")
    return changed.select(*columns, "rank AS rank_number", name="result").sink("out", out)
