"""Flows over changes from many seeds, outside the suite: ``python -m tests.task.hunt_changes --first 1000 --seconds 600``.

``--looked`` takes those that are looked at after every epoch.
"""

from __future__ import annotations

import argparse
import collections
import tempfile
import time
from pathlib import Path

from tests.task.changing import Drawn
from tests.task.looking import Looked
from tests.task.test_changes import check


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--looked", action="store_true")
    options = parser.parse_args()
    until, seed = time.monotonic() + options.seconds, options.first
    counts: collections.Counter[str] = collections.Counter()
    while time.monotonic() < until:
        drawn = Looked(seed) if options.looked else Drawn(seed)
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = _run(drawn, Path(folder))
            except Exception as error:  # an AssertionError or whatever the engine raises: the hunt goes on
                counts["failures"] += 1
                print(f"seed {seed}: {drawn.words}: {type(error).__name__}: {str(error)[:400]}", flush=True)
            else:
                joins = sum(" join with " in step.name for step in drawn.steps)
                counts.update({"rows": len(drawn.rows), "flows with joins": int(joins > 0), "joins": joins, **told})
        counts["flows"] += 1
        seed += 1
    print(f"seeds {options.first}:{seed}", dict(counts), flush=True)


def _run(drawn: Drawn | Looked, folder: Path) -> dict[str, int]:
    if isinstance(drawn, Looked):
        return {"looks": drawn.run(folder)}
    log, out, epochs = drawn.run(folder)
    check(drawn, log, out, epochs)
    return {"epochs": epochs, "rescales": drawn.moves, "restarts": drawn.restarts, "changes told": log.height}


if __name__ == "__main__":
    main()
