"""Events of a loop, for caches, modifications, the autoscaler and a run's listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.epochs.decision import EpochDone
from meander.state.manifest import Manifest


class LoopEvents:
    """All events. A listener overrides the methods of those that it wants to hear of."""

    def epoch_done(self, done: EpochDone) -> None:
        """An epoch is over. In the loop's thread."""

    def segments_collected(self, segments: list[str]) -> None:
        """Segments were removed from the store. Perhaps in a thread that removes them."""

    def plan_changed(self, manifest: Manifest) -> None:
        """A sibling has committed an epoch under another plan, or has ended the probation of this one."""

    def plan_unsettled(self, manifest: Manifest) -> None:
        """A trial was broken off: what this manifest says is in force, and on probation where it says so."""

    def idle(self) -> None:
        """There is no input for an epoch."""


class Listeners(LoopEvents):
    """Several listeners as one. Each hears of what happens in the order in which they were added."""

    def __init__(self, listeners: Sequence[LoopEvents] = ()) -> None:
        self._all = list(listeners)

    def add(self, listener: LoopEvents) -> None:
        self._all.append(listener)

    def epoch_done(self, done: EpochDone) -> None:
        for listener in self._all:
            listener.epoch_done(done)

    def segments_collected(self, segments: list[str]) -> None:
        for listener in self._all:
            listener.segments_collected(segments)

    def plan_changed(self, manifest: Manifest) -> None:
        for listener in self._all:
            listener.plan_changed(manifest)

    def plan_unsettled(self, manifest: Manifest) -> None:
        for listener in self._all:
            listener.plan_unsettled(manifest)

    def idle(self) -> None:
        for listener in self._all:
            listener.idle()


class EpochListener(LoopEvents):
    """A function that is called after every epoch."""

    def __init__(self, listener: Callable[[EpochDone], None]) -> None:
        self._listener = listener

    def epoch_done(self, done: EpochDone) -> None:
        self._listener(done)
