"""q2, selection: the bids for every 123rd auction. A filter, in SQL text."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q2 = md.Flow("q2")
    bids = q2.source("bid", tables["bid"])
    chosen = bids.filter("auction % 123 = 0", name="every_123rd")
    return chosen.select("auction", "price", name="result").sink("out", out)
