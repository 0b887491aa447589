"""The measured side of the benchmark of changes: a flow under a steady load that is changed, restarted, and whose operators move."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

import meander as md
from meander.bench.harness.isolation import Progress
from meander.bench.harness.statistics import Json
from meander.bench.load.steady import SCHEMA, Feed, Sight, drained, meander_names
from meander.bench.modify.request import ModifyRequest

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone

_LOAD_ROWS = 4_000
_ROWS = 16 * _LOAD_ROWS
"""Per epoch at most: the state to begin with must not be one epoch."""
_MORE_SLOTS = 4
"""Operators that migrate get slots of their own on another executor."""
_MERGED = 17
"""The most segments of an operator that has nothing to merge: fewer than two rounds of eight, and
the results of merges."""
_LONGEST = 600.0
_WARM_EPOCHS = 5
_COLUMNS = {"key": pl.Int64(), "born": pl.Float64()}


def clean(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def cleaner(frame: pl.DataFrame) -> pl.DataFrame:
    """The function that takes its place: the same rows, by another way."""
    return frame.filter(pl.col("born") > 0)


class Load:
    """Input and output of one run, and the changes made to it."""

    def __init__(self, request: ModifyRequest, first: int = 1, names: Callable[[int], list[str]] | None = None) -> None:
        folder = Path(request.folder)
        self.out = folder / "out"
        self.feed = Feed(folder / "in", request.rate, request.keys, text=bool(request.operators))
        self.sight = Sight(self.out, names or meander_names(request.parallelism), first)
        self.changes: list[Json] = []

    def start(self) -> None:
        self.sight.start()
        self.feed.start()

    def await_output(self, since: float, alive: Callable[[], bool] = lambda: True) -> float:
        """When something came out after ``since``. ``alive``: whether there is still anybody to wait for."""
        deadline = time.monotonic() + _LONGEST
        while self.sight.last() <= since:
            if not alive():
                raise md.Retryable("it ended before it gave anything out; see the log")
            if time.monotonic() > deadline:
                raise md.Retryable("no output; see the log")
            time.sleep(0.005)
        return self.sight.last()

    def answer(self, **more: Any) -> Json:
        """Wait for all output, and return the measurements."""
        self.feed.stop()
        account = drained(self.sight, self.feed, self.out, _LONGEST)
        self.sight.stop()
        epochs = [{"end": e.end, "rows": e.rows, "first": e.first, "last": e.last} for e in self.sight.published()]
        return {"epochs": epochs, "changes": self.changes, "events": self.feed.events, **account, **more}


def run(request: ModifyRequest, progress: Progress) -> Json:
    return _migrations(request, progress) if request.operators else _changes(request, progress)


def _changes(request: ModifyRequest, progress: Progress) -> Json:
    """Replace a function, change a condition, insert an operator, remove it, and stop and start again."""
    load = Load(request)
    flow = md.Flow("changing")
    events = flow.source("events", md.files(str(load.feed.folder), schema=SCHEMA, settle=0))
    kept = events.map_batches(clean, schema=_COLUMNS, name="clean").filter("key >= 0", name="positive")
    counts = kept.key_by("key").aggregate(md.count().alias("n"), md.max("born").alias("born"), name="counts")
    counts.sink("out", md.parquet(str(load.out)))
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    store = Path(request.folder) / "store"
    options: dict[str, Any] = {"parallelism": request.parallelism, "trigger": request.trigger, "idle_poll": 0.02}
    running = flow.start(store, spark=session, **options)
    ended = [0]  # told by the loop itself: a status takes as long as an epoch or two, and would be of before
    running.on_epoch(lambda done: ended.append(done.epoch))
    load.start()
    load.await_output(0.0)
    progress("warming up")
    time.sleep(request.warmup)
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("replace", lambda: running.replace("clean", md.map_batches(cleaner, schema=_COLUMNS))),
        ("filter", lambda: running.replace("positive", md.filter("key >= 0 and born > 1"))),
        ("insert", lambda: running.insert("no_bots", md.filter("key < 1000000000000"), after="positive")),
        ("remove", lambda: running.remove("no_bots")),
    ]
    for name, change in steps:
        progress(name)
        began = time.time()
        time.sleep(request.seconds)
        asked, epoch = time.time(), ended[-1]
        done = change()
        load.changes.append({"change": name, "began": began, "asked": asked, "in_force": time.time(), "epochs": done.epoch - epoch})
    progress("restart")
    began = time.time()
    time.sleep(request.seconds)
    asked = time.time()
    running.stop()
    stopped = time.time()
    running = flow.start(store, spark=session, **options)
    load.changes.append({"change": "restart", "began": began, "asked": asked, "in_force": load.await_output(stopped)})
    time.sleep(request.seconds)
    found = load.answer()
    running.stop()
    session.stop()
    return found


def _migrations(request: ModifyRequest, progress: Progress) -> Json:
    """All stateful operators to another executor, and back; then stop, and start again with other executors."""
    load = Load(request, names=meander_names(request.parallelism + _MORE_SLOTS))
    schema = {**SCHEMA, "text": "string"}
    flow = md.Flow("moving")
    keyed = flow.source("events", md.files(str(load.feed.folder), schema=schema, settle=0, max_rows_per_epoch=_ROWS)).key_by("key")
    for number in range(request.operators):
        columns = (md.count().alias("n"), md.max("born").alias("born"), md.max("text").alias("text"))
        operator = keyed.aggregate(*columns, name=f"op{number:02d}")
        if number == 0:
            operator.select("key", "n", "born", name="shown").sink("out", md.parquet(str(load.out)))
        else:
            operator.sink(f"out{number:02d}", md.discard())
    names = [f"op{number:02d}" for number in range(request.operators)]
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    files = _write_state(load.feed, request)
    store = f"throttled://{Path(request.folder).absolute()}/store?latency_ms=5&mb_per_s=200"
    options: dict[str, Any] = {
        "parallelism": request.parallelism,
        "trigger": request.trigger,
        "idle_poll": 0.02,
        "dead_letters": f"{request.folder}/dead",
    }
    epochs: list[Json] = []

    def listen(done: EpochDone) -> None:
        far = sum(done.outcome.counts.get(name, 0) for name in ("fetched_from_peers", "fetched_from_store"))
        epochs.append({"end": time.time(), "seconds": sum(done.seconds.values()), "far": far})
        progress(done.epoch)

    running = flow.start(store, spark=session, **options)
    running.on_epoch(listen)
    load.sight.start()
    while running.status()["rows_in"] < files * _LOAD_ROWS:
        time.sleep(0.2)
    load.feed.start()
    progress("warming up")
    time.sleep(request.warmup)
    _await_merged(running)
    state = sum(operator["bytes"] for operator in running.status()["operators"].values())
    executors = sorted(running.status()["executors"])
    home = next(name for name, executor in running.status()["executors"].items() if executor["slots"])
    away = next(name for name in executors if name != home)
    for name, executor in (("migrate", away), ("back", home)):
        progress(name)
        began = time.time()
        time.sleep(request.seconds)
        asked = time.time()
        done = running.migrate(names, executor, timeout=_LONGEST)
        in_force = time.time()
        warm = _await_warm(epochs, in_force)
        load.changes.append(
            {"change": name, "began": began, "asked": asked, "in_force": in_force, "warm": warm, "bytes": done.fetched, "moved": done.moved}
        )
    progress("restart")
    began = time.time()
    time.sleep(request.seconds)
    asked = time.time()
    running.stop()
    stopped = time.time()
    session.stop()
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    running = flow.start(store, spark=session, **options)
    running.on_epoch(listen)
    load.changes.append({"change": "restart", "began": began, "asked": asked, "in_force": load.await_output(stopped)})
    time.sleep(request.seconds)
    found = load.answer(times=epochs, state_bytes=state)
    running.stop()
    session.stop()
    return found


def _await_merged(running: md.Run) -> None:
    """The initial state came all at once: wait until the flow has merged it, like a flow that has
    been running for long."""
    deadline = time.monotonic() + _LONGEST
    while any(operator["segments"] > _MERGED for operator in running.status()["operators"].values()):
        if time.monotonic() > deadline:
            raise md.Retryable(f"the state is not merged after {_LONGEST:g} s; see the log")
        time.sleep(0.2)


def _await_warm(epochs: list[Json], since: float) -> float:
    """When epochs had what they need near them again: the end of the last one that fetched something, before some that did not."""
    deadline = time.monotonic() + _LONGEST
    while time.monotonic() < deadline:
        later = [epoch for epoch in list(epochs) if epoch["end"] >= since]
        if len(later) >= _WARM_EPOCHS and not any(epoch["far"] for epoch in later[-_WARM_EPOCHS:]):
            return max((epoch["end"] for epoch in later if epoch["far"]), default=since)
        time.sleep(0.1)
    raise md.Retryable(f"the state is not near after {_LONGEST:g} s; see the log")


def _write_state(feed: Feed, request: ModifyRequest) -> int:
    """One event for every key, with so much text that the operators have the state that is asked for. How many files."""
    width = max(1, request.state_bytes // (request.operators * request.keys))
    files = -(-request.keys // _LOAD_ROWS)
    letters = np.random.default_rng(7).integers(33, 126, width + 64, dtype=np.uint8).tobytes().decode()
    for number in range(files):
        keys = np.arange(number * _LOAD_ROWS, (number + 1) * _LOAD_ROWS) % request.keys
        texts = [letters[key % 64 : key % 64 + width] for key in keys.tolist()]
        frame = pl.DataFrame({"key": keys, "born": np.full(len(keys), time.time()), "text": texts})
        hidden = feed.folder / f".load-{number:06d}"
        frame.write_parquet(hidden)
        os.replace(hidden, feed.folder / f"load-{number:06d}.parquet")
        np.add.at(feed.counts, keys, 1)
    return files
