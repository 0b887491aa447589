"""The next epoch, while one runs: its input is decided, and its first stage may be under way. It is never committed before its turn."""

from __future__ import annotations

from typing import Any, NamedTuple

from meander.epochs.decision import Decision
from meander.epochs.runner import Runner


class Begun(NamedTuple):
    """An epoch whose input is decided."""

    decision: Decision
    prepared: Any = None
    """What the runner has begun of it; None where that is nothing."""


class Ahead:
    """The epoch that was begun ahead, where one was."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.begun: Begun | None = None

    def begin(self, decision: Decision, routing: dict[str, list[int]]) -> None:
        """Have the runner begin what does not depend on state."""
        self.begun = Begun(decision)  # first: the cursors have moved on
        self.begun = Begun(decision, self._runner.prepare(decision, routing))

    def take(self, epoch: int) -> Begun | None:
        """The epoch that was begun, if it has this number. Otherwise siblings were faster, and its work is discarded."""
        begun, self.begun = self.begun, None
        if begun is not None and begun.decision.epoch != epoch:
            self._runner.discard(begun.prepared)
            return None
        return begun

    def unprepare(self) -> None:
        """The next epoch's input stays decided; what was begun of it was for another table or plan."""
        if self.begun is not None:
            self.begun = self.without_work(self.begun)

    def without_work(self, begun: Begun) -> Begun:
        """The same input, with nothing begun."""
        self._runner.discard(begun.prepared)
        return begun._replace(prepared=None)

    def drop(self) -> None:
        """Forget the decision, too: the cursors go back."""
        if self.begun is not None:
            self._runner.discard(self.begun.prepared)
            self.begun = None
