"""q3, local item suggestion: who sells in category 10 and lives in Oregon, Idaho or California. A join without a bound in time."""

from __future__ import annotations

from collections.abc import Mapping

import meander as md
from meander.connect.sink import Sink
from meander.connect.source import Source


def flow(tables: Mapping[str, Source], out: Sink) -> md.Flow:
    q3 = md.Flow("q3")
    auctions = q3.source("auction", tables["auction"]).filter("category = 10", name="in_category")
    people = q3.source("person", tables["person"]).filter("state IN ('OR', 'ID', 'CA')", name="in_states")
    # The first row of a pair waits for the other without limit.
    local = auctions.join(people, left_on="seller", right_on="id", name="local")
    return local.select("name", "city", "state", "id", name="result").sink("out", out)
