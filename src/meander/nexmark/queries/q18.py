"""q18, find last bid: the last bid of every bidder for every auction, by the time in the rows and not by arrival."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q18 = md.Flow("q18")
    bids = q18.source("bid", tables["bid"])
    return bids.key_by("bidder", "auction").latest(order=["date_time", "price"], name="last").sink("out", out)
