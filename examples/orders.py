"""Totals per customer from a folder of JSON lines: the flow of the README, with a second wave of files.

Run it (about ten seconds, most of them Spark's start):

    python examples/orders.py

Expect the totals after the first files, then after one more file, and the state of both epochs: each epoch touches only what is
new, and the state of the earlier one can still be read. Everything is in a temporary folder.
"""

import json
import tempfile
from pathlib import Path

import polars as pl

import meander as md

FIRST = [("ada", 20.0), ("bob", 5.0), ("ada", 1.5), ("cleo", 300.0), ("bob", -5.0)]
SECOND = [("cleo", 12.0), ("dora", 7.25)]


def write(folder: Path, name: str, orders: list[tuple[str, float]]) -> None:
    """A file must be complete when it appears under its name: write it under another and rename."""
    hidden = folder / f".{name}"
    hidden.write_text("".join(json.dumps({"customer": c, "amount": a, "ts": "2024-05-01T12:00:00"}) + "\n" for c, a in orders))
    hidden.rename(folder / name)


def enrich(orders: pl.DataFrame) -> pl.DataFrame:
    """Any Python over whole batches; each row for itself."""
    return orders.with_columns(pl.when(pl.col("cents") >= 10_000).then(1).otherwise(0).cast(pl.Int64).alias("large"))


def build(folder: Path) -> md.Flow:
    flow = md.Flow("orders")
    orders = flow.source(
        "orders", md.files(folder / "in", format="json", schema={"customer": "string", "amount": "double", "ts": "timestamp"})
    )
    totals = (
        orders.filter("amount > 0", name="positive")  # SQL text or a Polars expression
        .with_columns((pl.col("amount") * 100).alias("cents"), name="to_cents")
        .map_batches(enrich, name="enrich")
        .key_by("customer")
        .aggregate(md.count().alias("n"), md.sum("amount").alias("total"), md.sum("large").alias("large_orders"), name="totals")
    )
    totals.sink("out", md.parquet(folder / "out"))
    return flow


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="meander-orders-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        flow = build(folder)
        print(flow.explain())
        write(folder / "in", "first.json", FIRST)
        with flow.start(store=folder / "state", parallelism=2, trigger=None) as run:
            print("\nafter the first file:", run.process_available())
            print(pl.DataFrame(md.read_state(folder / "state", "totals")).sort("customer"))
            write(folder / "in", "second.json", SECOND)
            print("after the second file:", run.process_available())
            print(pl.DataFrame(md.read_state(folder / "state", "totals")).sort("customer"))
        print("epoch 1 can still be read:")
        print(pl.DataFrame(md.read_state(folder / "state", "totals", epoch=1)).sort("customer"))
        print("and the output is plain Parquet:")
        print(pl.read_parquet(folder / "out" / "*.parquet").sort("customer", "n"))


if __name__ == "__main__":
    main()
