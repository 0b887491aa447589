"""Flows over changes from many seeds, outside the suite: ``python -m tests.task.hunt_changes --first 1000 --seconds 600``."""

from __future__ import annotations

import argparse
import collections
import tempfile
import time
from pathlib import Path

from tests.task.changing import Drawn
from tests.task.test_changes import check


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    until, seed = time.monotonic() + options.seconds, options.first
    counts: collections.Counter[str] = collections.Counter()
    while time.monotonic() < until:
        drawn = Drawn(seed)
        with tempfile.TemporaryDirectory() as folder:
            try:
                log, out, epochs = drawn.run(Path(folder))
                check(drawn, log, out, epochs)
            except Exception as error:  # an AssertionError or whatever the engine raises: the hunt goes on
                counts["failures"] += 1
                print(f"seed {seed}: {drawn.words}: {type(error).__name__}: {str(error)[:400]}", flush=True)
            else:
                joins = sum(" join with " in step.name for step in drawn.steps)
                counts.update(epochs=epochs, rows=len(drawn.rows), rescales=drawn.moves, restarts=drawn.restarts)
                counts.update({"flows with joins": int(joins > 0), "joins": joins, "changes told": log.height})
        counts["flows"] += 1
        seed += 1
    print(f"seeds {options.first}:{seed}", dict(counts), flush=True)


if __name__ == "__main__":
    main()
