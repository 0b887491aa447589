"""A reader process beside a writer: reads a store until its input closes, checks every state it gets, and says what it saw.

python -m tests.simulation.reader FOLDER SEED
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from collections import Counter
from typing import Any

from tests.simulation.parts import OPERATOR
from tests.simulation.steady import State, as_state, epoch_of, expected

from meander.errors import ConfigError, Retryable
from meander.state.log import read_manifest
from meander.state.stores.contract import DirStore, Store
from meander.task.reading import read_operator


class Halting:
    """A reader that now and then stands still for some epochs, between any two of its operations."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store, self._rng = store, rng
        self.url = store.url

    def __getattr__(self, verb: str) -> Any:
        if self._rng.random() < 0.03:
            time.sleep(self._rng.random() * 0.1)
        return getattr(self._store, verb)


def read_newest(store: Store) -> str | None:
    """What is wrong with the newest state, if anything: it is of no epoch, or of one that was not the newest when the read began."""
    floor = read_manifest(store).epoch
    state = as_state(read_operator(store, OPERATOR))
    epoch = epoch_of(state)
    if epoch < floor:
        return f"the newest state is of epoch {epoch}, {floor} was committed before"
    return compare(state, epoch)


def read_past(store: Store, back: int) -> str | None:
    """What is wrong with the state of a past epoch, if anything; one that is not retained any more is said to be."""
    epoch = max(1, read_manifest(store).epoch - back)
    return compare(as_state(read_operator(store, OPERATOR, epoch)), epoch)


def compare(state: State, epoch: int) -> str | None:
    return None if state == expected(epoch) else f"asked for epoch {epoch}, got a state that is not: {state}"


def main() -> None:
    rng = random.Random(int(sys.argv[2]))
    store = Halting(DirStore(sys.argv[1]), rng)
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        kind = rng.choice(("newest", "newest", "past"))
        try:
            problem = read_newest(store) if kind == "newest" else read_past(store, rng.randrange(6))
            seen[kind] += 1
        except Retryable:
            problem = None
            seen["overtaken"] += 1
        except ConfigError as error:
            problem = None if "is not retained any more; epoch" in str(error) and kind == "past" else str(error)
            seen["left"] += 1
        except Exception as error:
            problem = repr(error)
        if problem is not None:
            wrong.append(problem)
    print(json.dumps({**seen, "wrong": wrong[:5]}))


if __name__ == "__main__":
    main()
