"""The protocol of sources: the driver chooses an epoch's input from one, and tasks read it.

A source is described by a frozen object that travels to the executors. On the driver it gives a
*cursor*, which cuts the input into *splits*: fixed pieces that can be read again at any time with the
same rows in the same order. Splits never depend on the parallelism; a row's position is (split, offset).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import polars as pl


@dataclass(frozen=True)
class Split:
    """A fixed piece of one source's input.

    ``payload`` is JSON and is all that is needed to read the piece again. ``rows`` is exact where the
    source knows it and an estimate otherwise; ``bytes`` is the size that limits and paths are chosen by.
    ``born`` is when the first and the last row came to be, in seconds since 1970: latency starts there.
    """

    payload: dict[str, Any]
    rows: int
    bytes: int
    born: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class BadRow:
    """One row (or a whole file) that could not be read: goes to the dead letters, never away."""

    position: str
    reason: str
    content: str


@dataclass(frozen=True)
class Batch:
    """The rows of one split, in order, and those that could not be read."""

    frame: pl.DataFrame
    bad: tuple[BadRow, ...] = ()
    position: Callable[[int], str] | None = None
    """Where a row of the frame stands in the input, for people: a file and a line. None where its number in the split is all there is."""


@dataclass(frozen=True)
class Choice:
    """One epoch's share of a source: what to read, and the offset after it (JSON, small)."""

    splits: tuple[Split, ...]
    offset: dict[str, Any]
    seen: tuple[str, ...] = field(default=())
    """Names to be remembered for ever (files): kept in a table beside the manifest, not in the offset."""


class Cursor(Protocol):
    """A source's place in its input, on the driver. Not shared between threads."""

    def look(self) -> None:
        """Find all input that is there at this moment, whatever it costs: once before ``choose`` is asked for everything."""

    def choose(self, now: float, everything: bool) -> Choice | None:
        """The next epoch's input within the source's limits, or None where there is none now.

        Moves the cursor forward. The cost follows the input taken and the new input, never all
        input that is waiting. ``now`` is the decision's clock. ``everything`` is set when the
        caller guarantees that the input found by the last ``look`` is complete
        (``process_available``); otherwise a source finds its input by itself, and may leave out
        input that is still being written (files younger than their settle time).
        """

    def follow(self, given: Choice | None, agreed: Choice | None) -> None:
        """Move to the position after ``agreed``: the epoch uses this choice, made by another
        replica, and not ``given``, the cursor's own last one."""

    def backlog(self, now: float) -> bool:
        """Whether input for at least one more full epoch is waiting. Cheap: looks at nothing outside."""

    def waiting(self, now: float) -> int:
        """About how many rows are there to be taken, as far as is known without looking; 0 where nothing is known."""

    def slow_down(self, share: float) -> None:
        """Take only this share (0 < share ≤ 1) of the limits per epoch from now on. Never changes where splits are cut."""

    def finished(self) -> bool:
        """True when no input can ever come again (a generator with all its events taken)."""

    def release(self, names: Sequence[str]) -> None:
        """The epochs that took these names are committed and published, and are never run again:
        their input is not needed.

        Must be idempotent: a restart tells again what a crash may have kept from being done.
        """

    def close(self) -> None:
        """The run ends: whatever the cursor does in the background has ended when this returns."""


class Source(Protocol):
    """A source's description: immutable, comparable, and picklable."""

    def schema(self) -> pl.Schema:
        """The columns of every row that ``read`` returns."""

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> Cursor:
        """A cursor that stands where ``offset`` says ({} for the beginning)."""

    def read(self, payload: dict[str, Any]) -> Batch:
        """The rows of one split: the same rows in the same order, every time, on every machine.

        Raises Corrupted when what the split names is not what was decided any more.
        """

    def describe(self) -> str:
        """One short line for explain and status."""

    def canonical(self) -> str:
        """Everything but the schema that decides which rows a split has, and not where the input is: it may move. For digests."""


@runtime_checkable
class ChangesColumns(Protocol):
    """A source that can go on where it is with other columns."""

    def input(self) -> str:
        """All that decides which input there is and how it is cut: where it is equal, cursors and splits of the one serve the other."""

    def absent_as_null(self, columns: Collection[str]) -> Source:
        """The same source; where a row or a file lacks one of these columns, it is null there, and that is no fault."""
