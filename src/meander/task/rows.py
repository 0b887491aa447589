"""Rows on their way through a stage, and where each of them comes from.

A *unit* is the piece of the flow's data that never depends on the parallelism: a split of a source, or a key
group of a stateful operator. Whatever is folded before an exchange is folded within one unit, and folded
further in the order of units: that is why the result is the same at any parallelism.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

Units = npt.NDArray[np.uint64]
UNIT = "__unit"


def source_unit(split: int) -> int:
    """The unit of a source's split: splits come first, in the decision's order."""
    return split


def state_unit(operator: int, key_group: int) -> int:
    """The unit of a key group's output; ``operator`` is the operator's place in the plan."""
    return (operator + 1) << 32 | key_group


@dataclass(frozen=True)
class Rows:
    """Some rows of one stream, in order.

    ``unit`` is their one unit, or None where ``units`` has one per row. ``index`` is every row's offset in its
    unit's first appearance (a row of a source: its place in the split), or None where a function has mixed them.
    """

    frame: pl.DataFrame
    unit: int | None
    units: Units | None = None
    index: npt.NDArray[np.int64] | None = None
    place: str = ""
    """Where the rows come from, for people: a file, a partition, an operator."""
    locate: Callable[[int], str] | None = None
    """Where a row with this index stands, where its source can tell. Does not cross an exchange."""
    sign: int = 1
    """In a stream of changes: whether these rows have come (1), are gone (-1), or were touched and are what they were (0)."""
    partition: str = ""
    """The partition of the source that they come from, for watermarks. Does not cross an exchange."""

    def filter(self, mask: pl.Series) -> Rows:
        if mask.null_count():
            mask = mask.fill_null(False)
        if mask.all():
            return self
        keep = mask.to_numpy()
        index = self.index[keep] if self.index is not None else np.flatnonzero(keep)
        return replace(self, frame=self.frame.filter(mask), index=index, units=None if self.units is None else self.units[keep])

    def take(self, rows: npt.NDArray[np.intp]) -> Rows:
        index = self.index[rows] if self.index is not None else rows.astype(np.int64)
        return replace(self, frame=self.frame[rows], index=index, units=None if self.units is None else self.units[rows])

    def with_frame(self, frame: pl.DataFrame) -> Rows:
        """The same rows with other columns."""
        return replace(self, frame=frame)

    def with_sign(self, column: str) -> Rows:
        """The same rows as ones that have come, with a column that says what they were."""
        return replace(self, frame=self.frame.with_columns(pl.lit(self.sign, pl.Int8).alias(column)), sign=1)

    def by_unit(self) -> list[Rows]:
        """One object per unit, in order. Rows of a unit are always next to each other."""
        if self.units is None or len(self.units) == 0:
            return [self]
        cuts = np.flatnonzero(self.units[1:] != self.units[:-1]) + 1
        edges = [0, *cuts.tolist(), len(self.units)]
        return [
            Rows(self.frame[a:b], int(self.units[a]), None, None if self.index is None else self.index[a:b], self.place, sign=self.sign)
            for a, b in itertools.pairwise(edges)
        ]

    def position(self, row: int) -> str:
        offset = row if self.index is None else int(self.index[row])
        return self.locate(offset) if self.locate is not None else f"{self.place} row {offset + 1}"


def joined(pieces: Sequence[Rows], place: str) -> Rows:
    """Rows of several units as one object. Every piece has one unit, and all have one sign."""
    units = np.concatenate([np.full(piece.frame.height, piece.unit, np.uint64) for piece in pieces])
    return Rows(pl.concat([piece.frame for piece in pieces]), None, units, place=place, sign=pieces[0].sign)


def together(pieces: Sequence[Rows]) -> list[Rows]:
    """Join pieces of one unit each into few objects, for callers that fold within units and do not
    need places.

    If a unit comes in several pieces (a stream that was divided and united again), each object has
    one of them, in their order: so they are folded one after the other, whatever the other units
    are.
    """
    rounds: list[list[Rows]] = []
    came: dict[int | None, int] = {}
    for piece in pieces:
        number = came.get(piece.unit, 0)
        came[piece.unit] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(piece)
    found: list[Rows] = []
    for some in rounds:
        alike = len(some) > 1 and all(piece.frame.schema == some[0].frame.schema for piece in some)
        found.extend([joined(some, some[0].place)] if alike else some)
    return found
