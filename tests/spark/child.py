"""A driver process for crash tests: runs a flow over a folder, and kills itself with SIGKILL at a given step: see ``tests/crashing.py``.

python child.py '{"store": …, "in": …, "out": …, "crash": ["put_if_absent", 4, "before"], …}'
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
from pathlib import Path
from typing import Any

from tests.crashing import build, kill_as_asked

import meander as md
from meander.on_spark.session import executors


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
    kill_as_asked(request)
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
