"""q11, user sessions: how many bids a bidder makes before a pause of more than ten seconds. Sessions."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q11 = md.Flow("q11")
    bids = q11.source("bid", tables["bid"]).watermark("date_time", grace="4s", name="in_time")
    sessions = bids.key_by("bidder").window(md.session("10s")).aggregate(md.count().alias("bid_count"), name="sessions")
    return sessions.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime", name="result").sink("out", out)
