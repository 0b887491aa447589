"""The protocol of sinks: an epoch's rows are staged in the store, and the staged files are
published.

Tasks encode rows into files, which are durable in the store, and visible to nobody, before the
epoch commits. After the commit the driver publishes exactly the files the log entry names, in epoch
order. Publishing is idempotent: recovery publishes the last committed epoch again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

import polars as pl

from meander.errors import Corrupted


@dataclass(frozen=True)
class StagedFile:
    """A file of one sink, one epoch and one slot (or source task), durable and invisible until published."""

    name: str
    slot: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "slot": self.slot, "rows": self.rows}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> StagedFile:
        return StagedFile(**fields)


@dataclass(frozen=True)
class Staged:
    """A staged file, as the driver passes it to a sink at publication: its name and a way to read
    it."""

    file: StagedFile
    get: Callable[[], bytes]
    """StagedGone where the file is not in the store any more."""
    local: Path | None
    """The staged file's own path where the store is a directory, so that it can be linked, not copied."""


class StagedGone(Corrupted):
    """A staged file that the log names is not in the store. Where a later epoch is committed it was published, and collected."""


def is_done_by_one(sink: Sink) -> bool:
    """Whether publishing can be seen from outside each time it is done, so that of several replicas one does it."""
    return bool(getattr(sink, "done_by_one", False))


def for_tasks(sink: Sink) -> Sink:
    """A sink as tasks have it, which only encode: without what stays on the driver."""
    stripped: Callable[[], Sink] = getattr(sink, "for_tasks", lambda: sink)
    return stripped()


@dataclass(frozen=True)
class Use:
    """The place of a sink in a flow: facts about the flow that the sink needs."""

    flow: str
    sink: str
    schema: pl.Schema
    changes: bool
    """Whether its stream is one of changes."""
    store: str
    """The identity of the store; epoch numbers that a sink remembers belong to one store."""


class Sink(Protocol):
    """A sink's description: immutable and picklable. Live objects such as connections stay on the
    driver."""

    def encode(self, frame: pl.DataFrame) -> bytes:
        """The rows as the bytes of one staged file, in the task."""

    def open(self) -> None:
        """Called once on the driver before the first publication: check that the target can be written."""

    def publish(self, epoch: int, files: list[Staged]) -> None:
        """Make the files of one epoch visible, on the driver. Must be idempotent by epoch.

        An OSError or Retryable means that the sink cannot publish now: the flow waits and calls
        again. When this method returns, the epoch is durable.
        """

    def describe(self) -> str:
        """One short line for explain and status."""

    def canonical(self) -> str:
        """Everything that decides the published rows, without the target's place, since a target
        may move. For digests."""


@runtime_checkable
class ChecksColumns(Protocol):
    """A sink that does not take all rows."""

    def check(self, schema: pl.Schema, name: str) -> None:
        """FlowError where rows with these columns cannot go into it; called when the flow is written."""


@runtime_checkable
class RefusesRows(Protocol):
    """A sink that cannot publish every value."""

    def refused(self, frame: pl.DataFrame) -> pl.Series | None:
        """Why a row cannot be published, null for those that can; None where all can.

        Called in the task, before anything is staged. A committed row that cannot be published
        would stop the flow for ever. Refused rows are dead letters.
        """


@runtime_checkable
class HasPlace(Protocol):
    """A sink or a source that ``describe`` does not tell from all others of its kind, and that is no plain data class either."""

    def place(self) -> str:
        """The same text for the same place, settings and function, in every process."""


@runtime_checkable
class ShowsTable(Protocol):
    """A sink that can show the table that a stream of changes stands for.

    Of such a stream it is given each epoch's net change instead of the log: frames with the column ``net.SIGN``, in which rows that
    have come count 1 and rows that are gone -1. Rows of an append-only stream come as they come to every sink.
    """

    @property
    def shows_table(self) -> bool:
        """Whether this one does."""

    @property
    def table_key(self) -> tuple[str, ...] | None:
        """The columns by which the table's rows are told apart; None where it is a bag."""


def shows_table(sink: object) -> TypeGuard[ShowsTable]:
    return isinstance(sink, ShowsTable) and sink.shows_table


@runtime_checkable
class KnowsItsUse(Protocol):
    """A sink that publishes only where it knows the flow, the columns and the store."""

    def used(self, use: Use) -> Sink:
        """The sink for the driver, which opens it and publishes into it."""
