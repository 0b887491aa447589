"""The sink that keeps nothing, for benchmarks of everything before it.

``encode`` returns no bytes, so nothing is staged; the engine's row counts in status still hold. ``rows`` counts
what was published in this process from the files' own row counts.
"""

from __future__ import annotations

import polars as pl

from meander.connect.sink import Staged
from meander.stored import stored


@stored("discard")
class DiscardSink:
    """Counts rows by epoch and drops them."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def encode(self, frame: pl.DataFrame) -> bytes:
        return b""

    def open(self) -> None:
        """Nothing to check."""

    def publish(self, epoch: int, files: list[Staged]) -> None:
        self._rows[epoch] = sum(staged.file.rows for staged in files)

    def rows(self) -> int:
        """How many rows were published, each epoch counted once."""
        return sum(self._rows.values())

    def describe(self) -> str:
        return "discard"

    def canonical(self) -> str:
        return self.describe()

    def __reduce__(self) -> tuple[type[DiscardSink], tuple[()]]:
        return (DiscardSink, ())


def discard() -> DiscardSink:
    """A sink that counts its rows and keeps none: ``orders.sink("nowhere", md.discard())``."""
    return DiscardSink()
