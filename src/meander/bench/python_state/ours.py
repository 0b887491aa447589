"""The measured side of the benchmark of Python state: one state machine per key, as a processor in both forms.

The machine has three phases. In each it waits for a value beyond a limit, and goes on to the next;
it counts, adds up, remembers the last value, and emits a row when its phase changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import polars as pl

import meander as md
from meander.bench.harness.statistics import Json
from meander.bench.python_state.request import PythonStateRequest

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone

RISE, FALL, RETURN = 0.95, 0.1, 0.8
_OUTPUT = {"phase": "int64", "count": "int64", "total": "double", "last": "double"}


def step(phase: int, value: float) -> int:
    """The phase after a value. All systems compute it.

    >>> step(0, 0.96), step(1, 0.5), step(1, 0.05), step(2, 0.9)
    (1, 1, 2, 0)
    """
    if phase == 0:
        return 1 if value > RISE else 0
    if phase == 1:
        return 2 if value < FALL else 1
    return 0 if value > RETURN else 2


class PerKey(md.Processor):
    """Plain Python, row by row."""

    output: ClassVar[Any] = _OUTPUT
    count = md.value("int64", default=0)
    total = md.value("double", default=0.0)
    last = md.value("double")
    phase = md.value("int64", default=0)

    def on_events(self, key: int, rows: Any, state: Any, ctx: Any) -> Iterator[Any]:
        for value in rows["value"]:
            state.count += 1
            state.total += value
            state.last = value
            phase = step(state.phase, value)
            if phase != state.phase:
                state.phase = phase
                yield (phase, state.count, state.total, value)


class Vectorised(md.Processor):
    """The same over all keys at once: the first row of every key, then the second, and so on."""

    output: ClassVar[Any] = _OUTPUT
    count = md.value("int64", default=0)
    total = md.value("double", default=0.0)
    last = md.value("double")
    phase = md.value("int64", default=0)

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
        key, value = rows.get_column("key").to_numpy(), rows.get_column("value").to_numpy()
        starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        sizes = np.diff(np.append(starts, len(key)))
        order = np.argsort(-sizes, kind="stable")  # those with an n-th row are the first so many
        at, longest = starts[order], -sizes[order]
        total, phase = state.get_column("total").to_numpy()[order], state.get_column("phase").to_numpy()[order]
        count = state.get_column("count").to_numpy()[order]
        found = []
        for nth in range(int(sizes.max())):
            alive = int(np.searchsorted(longest, -nth))
            now, was = value[at[:alive] + nth], phase[:alive]
            total[:alive] += now
            after = np.where(was == 0, now > RISE, np.where(was == 1, 1 + (now < FALL), np.where(now > RETURN, 0, 2)))
            moved = np.flatnonzero(after != was)
            phase[:alive] = after
            found.append((at[moved], after[moved], count[moved] + (nth + 1), total[moved], now[moved]))
        columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
        output = pl.DataFrame([pl.Series("key", key[columns[0]]), *(pl.Series(n, c) for n, c in zip(_OUTPUT, columns[1:], strict=True))])
        back = np.empty(len(order), np.intp)
        back[order] = np.arange(len(order))
        new = {"count": (count + sizes[order])[back], "total": total[back], "last": value[starts + sizes - 1], "phase": phase[back]}
        return output, state.with_columns([pl.Series(name, column) for name, column in new.items()])


FORMS: dict[str, type[md.Processor]] = {"meander": PerKey, "meander-vectorised": Vectorised}


def run(request: PythonStateRequest, progress: Callable[[int], None]) -> Json:
    """The first epochs of the input, one after the other; the answer has the moment at which each ended."""
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    flow = md.Flow("bench")
    source = md.files(request.input, max_files_per_epoch=request.files_per_epoch)
    machines = flow.source("events", source).key_by("key").process(FORMS[request.system], name="machines")
    machines.sink("out", md.parquet(str(Path(request.folder) / "out")))
    epochs: list[Json] = []

    def listen(done: EpochDone) -> None:
        parts = {name: value * 1000 for name, value in done.outcome.seconds.items()}
        epochs.append({"end": time.monotonic(), "rows_in": done.outcome.counts.get("rows_in", 0), "task_ms": parts})
        progress(done.epoch)

    with flow.start(Path(request.folder) / "store", spark=session, parallelism=request.parallelism, trigger=None) as running:
        running.on_epoch(listen)
        running.process_available()
    session.stop()
    return {"epochs": epochs}
