"""q1, currency conversion: every bid with its price in euros. A column computed from another, in SQL text."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q1 = md.Flow("q1")
    bids = q1.source("bid", tables["bid"])
    return bids.select("auction", "bidder", "price * 0.908 AS price", "date_time", "extra", name="in_euros").sink("out", out)
