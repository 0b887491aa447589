"""A driver process for crash tests: runs a flow over a folder, and kills itself with SIGKILL at a given step.

    python child.py '{"store": …, "in": …, "out": …, "crash": ["put_if_absent", 4, "before"], …}'

The steps are the driver's own effects: every put, every link of a publication, every deletion. Nothing in the product knows of this:
the functions are wrapped here.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meander as md
from meander.connect.parquet import ParquetSink
from meander.on_spark.session import executors
from meander.state.log import Log
from meander.state.stores.contract import DirStore
from meander.state.stores.redis import RedisStore
from meander.state.stores.s3 import S3Store


def kill_at(owner: Any, name: str, nth: int, when: str) -> None:
    """Replace a function by one that dies with its nth call, before or after its effect."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += counts(name, args)
        if calls == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if calls == nth and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


def counts(name: str, args: tuple[Any, ...]) -> bool:
    """Of links only the publications, of the store's verbs all but the probe at the start and the lease's beats."""
    if name == "link":
        return str(args[1]).endswith(".parquet")
    return not (len(args) > 1 and str(args[1]).startswith(("probe/", "lease/")))


STORES: dict[str, Any] = {"redis": RedisStore, "s3": S3Store}
OWNERS: dict[str, Any] = {
    "publish": ParquetSink,
    "link": os,
    "snapshot": Log,
}


def build(request: dict[str, Any], spark: Any) -> md.Flow:
    flow = md.Flow("crash")
    if request.get("structured"):
        stream = spark.readStream.schema("key long, value double").option("maxFilesPerTrigger", "1").parquet(request["in"])
        source: Any = md.spark_stream(stream)
    else:
        source = md.files(request["in"], max_files_per_epoch=request.get("files", 1))
    events = flow.source("events", source)
    totals = events.key_by("key").aggregate(
        md.count().alias("n"),
        md.sum("value").alias("total"),
        md.count_distinct("value").alias("different"),
        *([md.collect("value").alias("values")] if request.get("lists", True) else []),
        name="totals",
    )
    totals.sink("out", md.parquet(request["out"]))
    if request.get("chain"):  # three stateful stages in a row
        sizes = totals.with_columns("n % 5 AS size", name="sizes").key_by("size").aggregate(md.sum("n").alias("m"), name="by_size")
        odds = sizes.with_columns("m % 2 AS odd", name="odds").key_by("odd")
        counts = odds.aggregate(md.count().alias("c"), md.max("m").alias("most"), name="by_odd")
        counts.changes(name="log").sink("chain_out", md.parquet(request["out"] + "-chain"))
    return flow


class Trouble(threading.Thread):
    """Rescales, evacuates and kills executors while a run goes on, as its seed says. Its list of what it did is printed at the end."""

    def __init__(self, run: md.Run, spark: Any, changes: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._run, self._spark, self._changes, self._random = run, spark, changes, random.Random(seed)
        self.done: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self._changes):
                epoch = self._run.status()["epoch"]
                self._one()
                while self._run.status()["epoch"] < epoch + 2:
                    time.sleep(0.02)
        except BaseException as error:
            self.failure = error

    def _one(self) -> None:
        kind = self._random.choices(["rescale", "evacuate", "kill"], [0.7, 0.15, 0.15])[0]
        there = sorted(executors(self._spark.sparkContext))
        victim = self._random.choice(there)
        if kind == "rescale" or len(there) < 2:
            slots, strategy = self._random.randint(1, 5), self._random.choice(["eager", "lazy", "prefetch", "hybrid"])
            self._run.rescale("totals", slots, strategy=strategy)
            self.done.append(f"rescale {slots} {strategy}")
            return
        if kind == "evacuate":
            with contextlib.suppress(md.ConfigError):  # it has died meanwhile, or is the last one that stays
                self._run.evacuate(victim)
                time.sleep(0.3)
        self.done.append(f"{kind} {victim}")
        for process in executor_processes():
            if process[1] == victim:
                os.kill(process[0], signal.SIGKILL)


def executor_processes() -> list[tuple[int, str]]:
    """The executors that this process's Spark has started: process and executor id."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "--executor-id" in words and os.getsid(int(path.parent.name)) == os.getsid(0):
                found.append((int(path.parent.name), words[words.index("--executor-id") + 1]))
    return found


def main() -> None:
    request = json.loads(sys.argv[1])
    if request.get("crash"):
        name, nth, when = request["crash"]
        kill_at(OWNERS.get(name) or STORES.get(request["store"].split(":")[0], DirStore), name, nth, when)
    spark = md.spark(master=request.get("master", "local[2]"))
    try:
        run = build(request, spark).start(
            request["store"],
            spark=spark,
            trigger=request.get("trigger"),
            parallelism=request.get("parallelism", 2),
            small_epochs=request.get("small", False),
            takeover=request.get("takeover", False),
            retain_epochs=100_000,
            dead_letters=request.get("dead_letters"),
        )
        print("started", flush=True)
        if request.get("trigger") is not None:
            run.await_termination()
        trouble = Trouble(run, spark, request.get("changes", 0), request.get("seed", 0))
        trouble.start()
        progress = run.process_available()
        run.stop()
        answer = {"epochs": progress.epochs, "rows_in": progress.rows_in, "status": run.status()["state"]}
        print(json.dumps({**answer, "changes": trouble.done, "trouble": repr(trouble.failure)}), flush=True)
    except md.MeanderError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
