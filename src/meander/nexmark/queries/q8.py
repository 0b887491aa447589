"""q8, monitor new users: people who opened an auction in the ten seconds in which they came. A join of windows, each result once."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q8 = md.Flow("q8")
    people = q8.source("person", tables["person"]).watermark("date_time", grace="4s", name="people_in_time")
    auctions = q8.source("auction", tables["auction"]).watermark("date_time", grace="4s", name="auctions_in_time")
    sellers = people.window(md.tumbling("10s")).join(auctions, left_on="id", right_on="seller", name="sellers")
    once = sellers.deduplicate("id", "window_start", ttl="10s", name="once")
    return once.select("id", "name", "window_start AS stime", name="result").sink("out", out)
