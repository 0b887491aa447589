"""q4, average price for a category: the mean of the winning prices of its auctions. An aggregate over what windows give."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.nexmark.queries.winning import winning_bids


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q4 = md.Flow("q4")
    averages = winning_bids(q4, tables).key_by("category").aggregate(md.mean("price").alias("final"), name="averages")
    return averages.select("category AS id", "final", name="result").sink("out", out)
