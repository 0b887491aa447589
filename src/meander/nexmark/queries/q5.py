"""q5, hot items: in every window of the last ten seconds, every two, the auctions with most bids. A window that follows on a window."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q5 = md.Flow("q5")
    bids = q5.source("bid", tables["bid"]).watermark("date_time", grace="4s", name="in_time")
    counts = bids.key_by("auction").window(md.sliding("10s", "2s")).aggregate(md.count().alias("num"), name="counts")
    # Rows of a window have the time of its end: windows that end together meet in the two seconds
    # before it.
    hottest = counts.window(md.tumbling("2s")).top(1, by="num", ties="all", name="hottest")
    return hottest.select("auction", "num", name="result").sink("out", out)
