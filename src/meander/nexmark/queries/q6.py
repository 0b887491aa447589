"""q6, average selling price by seller: the mean of the last ten winning prices of every seller. An aggregate of one's own."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.nexmark.queries.winning import winning_bids


class MeanOfLast(md.Aggregator):
    """The mean of the last prices. Its state is a list of at most ``count`` (time, price, id), the newest first."""

    inputs = ("date_time_right", "price", "id")
    count = 10

    def init(self) -> dict[str, pl.Expr]:
        return {"sold": pl.struct(self.inputs).sort(descending=True).head(self.count)}

    def merge(self) -> dict[str, pl.Expr]:
        return {"sold": self.state("sold").explode().sort(descending=True).head(self.count)}

    def finish(self) -> pl.Expr:
        return self.state("sold").list.eval(pl.element().struct.field("price")).list.mean()


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q6 = md.Flow("q6")
    averages = winning_bids(q6, tables).key_by("seller").aggregate(MeanOfLast().alias("avg_price"), name="averages")
    return averages.select("seller", "avg_price", name="result").sink("out", out)
