"""q22, get URL directories: the first three folders of the address of every bid; null where it has fewer."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q22 = md.Flow("q22")
    bids = q22.source("bid", tables["bid"])
    # "https:", "", the host, then the folders.
    parts = pl.col("url").str.split("/")
    folders = [parts.list.get(3 + number, null_on_oob=True).alias(f"dir{1 + number}") for number in range(3)]
    return bids.select("auction", "bidder", "price", "channel", *folders, name="directories").sink("out", out)
