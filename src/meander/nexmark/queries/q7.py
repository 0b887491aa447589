"""q7, highest bid: of every ten seconds, all bids with the highest price. The best rows of a window, over all keys."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q7 = md.Flow("q7")
    bids = q7.source("bid", tables["bid"]).watermark("date_time", grace="4s", name="in_time")
    highest = bids.window(md.tumbling("10s")).top(1, by="price", ties="all", name="highest")
    return highest.select("auction", "bidder", "price", "date_time", "extra", name="result").sink("out", out)
