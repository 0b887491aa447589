"""The answers of a running flow's verbs."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """The work done since the last call: ``run.process_available()`` returns a ``md.Progress``."""

    epochs: int
    rows_in: int
    rows_out: int
    dead_letters: int = 0


class Rescaled(NamedTuple):
    """A rescale that is in force: ``run.rescale("totals", 4)`` returns a ``md.Rescaled``."""

    operator: str
    before: int
    after: int
    moved: int
    """Key groups that have another slot now."""
    strategy: str
    epoch: int
    """The first epoch under the new routing table."""
    fetched: int = 0
    """Bytes that were brought into the new owners' caches, ahead of their use."""
    failures: tuple[str, ...] = ()
    """Key groups that could not be brought; they are fetched on first use."""
    fetched_from_store: int = 0
    """How many of the fetched bytes came from the store; the others came from the executors that had them."""


class Migrated(NamedTuple):
    """A migration that is in force: ``run.migrate("totals", "1")`` returns a ``md.Migrated``."""

    operators: tuple[str, ...]
    executor: str
    moved: int
    """Key groups that have another slot now, of all operators."""
    epoch: int
    """The first epoch with them there."""
    seconds: float
    """From the request until then."""
    fetched: int = 0
    """Bytes that were brought into the executor's cache ahead of their use, or are being brought now."""
    failures: tuple[str, ...] = ()
