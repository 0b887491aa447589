"""q12, processing time windows: the bids of every bidder in ten seconds of the flow's own clock. No watermark, and nothing is late."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q12 = md.Flow("q12")
    bids = q12.source("bid", tables["bid"])
    windows = bids.key_by("bidder").window(md.tumbling("10s", time="processing"))
    counts = windows.aggregate(md.count().alias("bid_count"), name="counts")
    return counts.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime", name="result").sink("out", out)
