"""The contract of jobs: they carry control messages to tasks, and return the tasks' reports.

``on_spark.jobs`` has Spark do it; ``testing`` does it in process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from meander.task.messages import Control, Seen

Places = Mapping[int, Sequence[str]]
"""Per level, the location hint of every slot."""


class Started(Protocol):
    """An epoch whose first stage is under way."""

    @property
    def shuffle_id(self) -> int: ...

    def is_over(self) -> bool:
        """Whether the first stage has ended, well or not."""

    def cancel(self) -> None:
        """Nobody waits for it any more."""


class Jobs(Protocol):
    """Runs one epoch's tasks at a time. Every result raises Retryable where running it again may help."""

    def start_first_stage(self, controls: Sequence[Control], slots: int, among: Sequence[str] = ()) -> Started:
        """Submit the first stage and its exchange, ahead of the job that needs it."""

    def run_rest(self, started: Any, levels: Sequence[Sequence[Control]], places: Places) -> Callable[[], list[Seen]]:
        """Submit the other levels, each pinned to its places. Returns at once; the result waits."""

    def run_single(self, controls: Sequence[Control], among: Sequence[str] = ()) -> Callable[[], list[Seen]]:
        """A flow without state: one stage."""

    def run_small(self, levels: Sequence[Sequence[Control]], places: Places) -> Callable[[], list[Seen]]:
        """A small epoch: the first two levels in one stage, without an exchange between them."""

    def forget_shuffles(self, keep: Sequence[int | None] = ()) -> None:
        """Remove what finished epochs exchanged."""

    def cancel(self) -> None:
        """Nobody waits any more for the job that was submitted last."""
