"""A store with a few epochs of one stateful operator, made by the state layer alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from tests.entries import epoch_entry

import meander as md
from meander.clock import FakeClock
from meander.state.hashing import hash_keys
from meander.state.log import Log
from meander.state.reading import AggregateReader, plan_name
from meander.state.segment import HASH, SegmentRef, encode_segment
from meander.state.stores.contract import DirStore
from meander.task.reading import write_readers

KEYS = ("customer",)
AGGREGATES = (md.count().alias("n"), md.sum("amount").alias("total"))
ALL_GROUPS = (1 << 128) - 1


def make_store(folder: Path, *epochs: dict[str, tuple[int, float]]) -> DirStore:
    """A store of flow "orders" whose operator "totals" has these values (n, total) after each epoch's updates."""
    store = DirStore(folder)
    log = Log.take_over(store, FakeClock(start=1000.0))
    store.put_if_absent(plan_name("d1"), write_readers("orders", {"totals": AggregateReader("totals", KEYS, AGGREGATES, pl.Schema())}))
    for number, updates in enumerate(epochs, start=1):
        ref = _put_segment(store, number, updates)
        log.append(
            epoch_entry(
                number,
                now=1000.0 + number,
                plan={"flow": "orders", "version": 1, "digest": "d1"},
                routing={"totals": [group % 2 for group in range(128)]},
                tables={"totals": {"keys": KEYS, "segments": [ref.to_json()]}},
                counts={"epochs": 1, "rows_in": 10, "rows_out": len(updates), "dead_letters": 1, "late_rows": 2, "late_rows.totals": 2},
            )
        )
    return store


def _put_segment(store: DirStore, epoch: int, updates: dict[str, tuple[int, float]]) -> SegmentRef:
    schema = pl.Schema({"customer": pl.String(), "amount": pl.Float64()})
    parts = [f"{agg.name}.{part}" for agg in AGGREGATES for part in agg.parts(schema)]
    assert len(parts) == 2, f"count and sum have one part each, not {parts}"
    frame = pl.DataFrame([(key, *values) for key, values in updates.items()], schema=["customer", *parts], orient="row")
    hashes = hash_keys(frame.select(KEYS))
    order = np.argsort(hashes)
    data = encode_segment(frame[order].insert_column(0, pl.Series(HASH, hashes[order])))
    name = f"segments/totals/00000001-{epoch:010d}-0000-a.arrow"
    store.put(name, data)
    return SegmentRef(name, frame.height, data.size, epoch, ALL_GROUPS)
