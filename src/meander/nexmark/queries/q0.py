"""q0, pass through: every bid as it is. Its cost is that of everything but a query."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q0 = md.Flow("q0")
    bids = q0.source("bid", tables["bid"])
    return bids.select("auction", "bidder", "price", "date_time", "extra", name="result").sink("out", out)
