"""Whether a flow gives the same results however its input is cut into epochs, on however many slots, with restarts in between."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from polars.testing import assert_frame_equal

from meander.connect.memory import MemorySink, memory
from meander.errors import FlowError
from meander.plan.operators import SinkOp, SourceOp
from meander.testing.clock import START
from meander.testing.rows import Rows, frame_of
from meander.testing.running import run

if TYPE_CHECKING:
    from meander.plan.change.become import HasPlan

_MOST_EPOCHS = 8
_MOST_SLOTS = 4


def check(
    flow: HasPlan, folder: str | Path, rows: Mapping[str, Rows], *, cuts: int = 5, seed: int = 0, clock: str | datetime = START
) -> dict[str, pl.DataFrame]:
    """Run a flow over the same rows in one epoch, and then cut into epochs in ``cuts`` other ways;
    AssertionError if its output differs.

    ``rows`` has the rows of every source, in order. Each cut has another parallelism, and is
    rescaled and restarted between its epochs; all of it follows from ``seed``. The rows of each
    sink are compared, or its table if it gets a stream of changes; they are also the result, by
    sink. Floats may differ by rounding. A row that is late in one cut may not be late in another:
    give rows in order, or within the grace.

    >>> import tempfile
    >>> import meander as md
    >>> from meander import testing
    >>> flow = md.Flow("counts")
    >>> words = flow.source("words", testing.source("word string", []))
    >>> counts = words.key_by("word").aggregate(md.count().alias("n"), name="counts").sink("out", md.discard())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     testing.check(flow, folder, {"words": [("to",), ("be",), ("to",)]}, cuts=2)["out"].rows()
    [('be', 1), ('to', 2)]
    """
    plan = flow.plan()
    sources = {node.name: pl.Schema(node.op.source.schema()) for node in plan.nodes if isinstance(node.op, SourceOp)}
    if set(rows) != set(sources):
        given_of = ", ".join(rows) or "nothing"
        raise FlowError(f"check: rows are given of {given_of}; the sources of flow {plan.flow!r} are {', '.join(sources)}")
    frames = {name: frame_of(given, sources[name], f"source {name!r}") for name, given in rows.items()}
    random = np.random.default_rng(seed)
    whole: dict[str, pl.DataFrame] = {}
    for cut in range(cuts + 1):
        number = 1 if cut == 0 else int(random.integers(2, _MOST_EPOCHS + 1))
        slots = 1 if cut == 0 else int(random.integers(1, _MOST_SLOTS + 1))
        epochs = {name: _cut(frame, number, random) for name, frame in frames.items()}
        sinks: dict[str, MemorySink] = {
            node.name: memory(True) if node.inputs[0] in plan.changes else memory() for node in plan.nodes if isinstance(node.op, SinkOp)
        }
        with run(flow, Path(folder, f"cut-{cut}"), sources=epochs, sinks=sinks, clock=clock, parallelism=slots) as running:
            while running.step():
                if cut and random.random() < 0.5:
                    running.restart()
                for operator in running.operators if cut else ():
                    running.rescale(operator, int(random.integers(1, _MOST_SLOTS + 1)))
            running.run(flush=True)
        found = {name: _sorted(sink.frame()) for name, sink in sinks.items()}
        whole = whole or found
        for name, frame in found.items():
            try:
                assert_frame_equal(_sorted(whole[name]), frame, check_exact=False)
            except AssertionError as error:
                pieces = "; ".join(f"{source}: {', '.join(str(part.height) for part in parts)}" for source, parts in epochs.items())
                raise AssertionError(
                    f"sink {name!r} gets something else where the rows come in epochs of ({pieces}), with seed={seed}: {error}\n"
                    f"in one epoch: {whole[name].rows()}\nso cut: {frame.rows()}"
                ) from None
    return whole


def _cut(frame: pl.DataFrame, number: int, random: np.random.Generator) -> list[pl.DataFrame]:
    places = [0, *sorted(random.integers(0, frame.height + 1, number - 1).tolist()), frame.height]
    return [frame[begin:end] for begin, end in pairwise(places)]


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort(pl.all(), nulls_last=False) if frame.width else frame
