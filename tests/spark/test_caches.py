"""An executor's cache on real Spark: what the driver collects leaves it, so that it holds what is alive and not what ever was."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from tests.drivers import write_input

import meander as md
from meander.cache.reader import ExecutorCache


def executor_cache(frame: Any) -> Any:
    """Leaves a note where this executor's cache is: a worker knows."""
    import polars as pl

    from meander.worker import Worker

    found = [str(one.folder) for one in Worker.here().executor_caches.values() if isinstance(one, ExecutorCache)]
    return frame.with_columns(pl.lit(found[0] if found else "").alias("folder"))


def test_segments_that_were_collected_leave_the_cache_of_the_executor(tmp_path: Path, spark: Any) -> None:
    write_input(tmp_path / "in", files=60, rows=50, keys=40)
    flow = md.Flow("cached")
    events = flow.source("events", md.files(tmp_path / "in", max_files_per_epoch=1))
    counts = events.key_by("key").aggregate(md.count().alias("n"), name="counts")
    out = md.memory()
    counts.map_batches(executor_cache, name="household").sink("out", out)
    store = f"throttled://{tmp_path}/state?latency_ms=1&mb_per_s=500"
    with flow.start(store, spark=spark, retain_epochs=2, dead_letters=str(tmp_path / "dead")) as run:
        deadline = time.monotonic() + 60
        while run.status()["rows_in"] < 60 * 50 and time.monotonic() < deadline:
            time.sleep(0.05)
        table: pa.Table = out.table()
        (folder,) = set(table["folder"].to_pylist()) - {""}
        deadline = time.monotonic() + 10
        while (left := cached(folder) - stored(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, "gone from the store, and still in the cache"
        assert cached(folder), "what is alive is there"
        assert len(cached(folder)) < 60, "something was collected at all"


def cached(folder: str) -> set[str]:
    return {unquote(path.name) for kind in ("whole", "parts") for path in (Path(folder) / "cache" / kind).glob("[!.]*")}


def stored(folder: Path) -> set[str]:
    return {str(path.relative_to(folder / "state")) for path in (folder / "state" / "segments").rglob("*.arrow")}
