"""The input and the output of a processor's code in one epoch: the same for both forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.plan.windows import NEVER, Times
from meander.processor import Variable
from meander.state.grouping import Index
from meander.state.hashing import Hashes


@dataclass(frozen=True)
class InputColumns:
    """One input of a processor."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    time: str | None
    """None if the processor follows the clock."""
    shift: int
    zone: str | None
    words: str = ""
    """The name of the input in messages, after a noun: `` of the right``."""


@dataclass
class InputRows:
    """The rows of one input."""

    rows: pl.DataFrame
    """By key, a key's rows in their order."""
    begins: Index
    ends: Index
    """Where each key's rows are."""
    times: Times
    """Each key's largest event time, or the decision's time."""

    def whose(self) -> Index:
        """The keys with rows."""
        return np.flatnonzero(self.ends > self.begins)


@dataclass
class CallInput:
    """One epoch of one slot: the keys to call, their rows, and their stored state."""

    keys: pl.DataFrame
    """Under the names of the first input."""
    hashes: Hashes
    came: tuple[InputRows, ...]
    """By input."""
    present: npt.NDArray[np.bool_]
    """The keys that have a stored row."""
    state: dict[str, pl.Series]
    """Variables and timers of all keys; defaults where nothing is stored."""
    marks: Mapping[str, int]
    """By clock, up to where timers fire."""

    def taken(self, refused: Sequence[Index]) -> tuple[npt.NDArray[np.bool_], Times]:
        """The keys with rows that have not become dead letters, and the time of the newest of
        them."""
        has_any = np.zeros(len(self.hashes), np.bool_)
        newest = np.full(len(self.hashes), NEVER, np.int64)
        for came, not_these in zip(self.came, refused, strict=True):
            has = came.ends > came.begins
            has[not_these] = False
            newest[has] = np.maximum(newest[has], came.times[has])
            has_any |= has
        return has_any, newest


@dataclass
class CallOutput:
    """The result of the calls: the keys whose state may have changed, its columns for these keys,
    new timers, and rows."""

    changed: Index
    state: dict[str, pl.Series]
    added: Mapping[str, tuple[Index, Times]] = field(default_factory=dict)
    """By clock, timers that were set: whose, and when."""
    rows: pl.DataFrame | None = None
    owners: Index = field(default_factory=lambda: np.zeros(0, np.intp))
    """The number of each row's key, ascending."""
    sides: Mapping[str, tuple[pl.DataFrame, Index]] = field(default_factory=dict)
    """By side output, rows and whose they are, ascending."""
    refused: Sequence[Index] = ()
    """By input, keys whose rows became dead letters."""


def default_of(variable: Variable | None, name: str, dtype: pl.DataType) -> pl.Series:
    """A column's default, once."""
    if variable is not None and variable.kind == "value":
        return pl.Series(name, [variable.default], dtype=dtype)
    return pl.Series(name, [[] if isinstance(dtype, pl.List) else None], dtype=dtype)


def is_default(series: pl.Series, variable: Variable) -> pl.Series:
    """Whether each is what a key begins with."""
    if variable.kind != "value":
        return series.list.len().fill_null(0) == 0
    return series.eq_missing(pl.Series([variable.default], dtype=variable.dtype))
