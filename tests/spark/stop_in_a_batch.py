"""A driver that stops a flow of Structured Streaming in the middle of a batch: from outside, and from a listener. Prints what is there."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import meander as md


def main() -> None:
    folder, store = sys.argv[1:]
    spark = md.spark(master="local[2]", app_name="stop-in-a-batch")
    stream = spark.readStream.schema("key long, value double").option("maxFilesPerTrigger", "1").parquet(folder)

    def start(trigger: str | None = None) -> md.Run:
        flow = md.Flow("stream")
        flow.source("events", md.spark_stream(stream)).key_by("key").aggregate(md.count().alias("n"), name="counts").sink(
            "out", md.discard()
        )
        return flow.start(store, spark=spark, trigger=trigger)

    epochs = []
    run = start("0s")
    inside, stopping = threading.Event(), threading.Event()

    def hold(done: Any) -> None:
        inside.set()
        stopping.wait(30)
        time.sleep(0.5)  # long enough for the stop to meet the batch

    run.on_epoch(hold)
    assert inside.wait(60)
    stopping.set()
    run.stop()
    epochs.append(run.status()["epoch"])

    run = start("0s")
    run.on_epoch(lambda done: run.stop())
    run.await_termination(60)
    query = run._driver._query  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    epochs.append(run.status()["epoch"])
    assert not query.isActive

    with start() as run:
        run.process_available()
        epochs.append(run.status()["epoch"])
        rows = run.status()["rows_in"]
    print(json.dumps({"epochs": epochs, "rows": rows, "counted": sum(md.read_state(store, "counts")["n"].to_pylist())}))
    spark.stop()


if __name__ == "__main__":
    main()
