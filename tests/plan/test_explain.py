"""The plan as text is compared with golden files; run with MEANDER_REGOLD=1 to write them again, then read the diff."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

from meander import aggregates as md
from meander.flow import Flow

GOLDEN = Path(__file__).parent.parent / "golden"


def enrich(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.lit("eu").alias("region"))


def orders() -> Flow:
    flow = Flow("orders")
    (
        flow.source("orders", rows())
        .filter("amount > 0", name="positive")
        .with_columns((pl.col("amount") * 100).alias("cents"), name="to_cents")
        .map_batches(enrich, name="enrich")
        .key_by("customer")
        .aggregate(md.count().alias("n"), md.sum("amount").alias("total"), name="totals")
        .sink("out", Nowhere())
    )
    return flow


def branches() -> Flow:
    flow = Flow("branches")
    web = flow.source("web", rows())
    shop = flow.source("shop", rows())
    everything = web.union(shop, name="all")
    everything.filter("amount > 1000").sink("large", Nowhere())
    totals = everything.key_by("customer").aggregate(
        md.sum("amount").alias("total"), md.quantile("amount", 0.9).alias("p90"), name="totals"
    )
    first = everything.deduplicate("customer", name="first").select("customer", "round(amount) as euros")
    first.key_by("euros").aggregate(md.count(), md.collect("customer")).sink("histogram", Nowhere())
    totals.sink("totals_out", Nowhere())
    return flow


@pytest.mark.parametrize("flow", [orders(), branches()], ids=lambda flow: flow.name)
def test_explain_is_the_golden_text(flow: Flow) -> None:
    path = GOLDEN / f"plan_{flow.name}.txt"
    text = flow.explain() + "\n"
    if os.environ.get("MEANDER_REGOLD"):
        path.write_text(text)
    assert text == path.read_text()
