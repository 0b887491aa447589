"""A loop's questions to the other replicas of its flow.

``alone`` answers where there are none, ``replicate.follow`` where there are some.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from meander.epochs.decision import Decision, Outcome
from meander.errors import Retryable
from meander.state.log import Taken
from meander.state.manifest import Json, Manifest


class Siblings(Protocol):
    """The other replicas, to one loop. In the loop's thread."""

    replicated: bool
    """Whether there can be any."""
    waits_for: type[Retryable]
    """What is waited for as long as it takes: the store, or all that may not answer."""

    @property
    def who(self) -> str:
        """The name of this run in messages."""

    @property
    def may_decide(self) -> bool: ...

    @property
    def is_leaving(self) -> bool:
        """Whether this replica is about to end, and waits for nothing that takes long."""

    def now(self) -> float:
        """The time of the next decision: not before that of the last one, whichever replica made it."""

    def stepping(self) -> AbstractContextManager[None]:
        """The loop is in a step: replicas that wait for this one see it."""

    def keeps_house(self) -> bool:
        """Whether merges, snapshots and garbage are this replica's work."""

    def step_down(self) -> None:
        """Lead no more, if another replica could."""

    def decided(self, epoch: int) -> Decision | None:
        """The agreed decision for an epoch, if there is one; the cursors are moved behind it."""

    def agree(self, mine: Decision) -> Decision | None:
        """The decision that counts. None where the epoch is long over."""

    def keep_up(self, certain: bool = True) -> None:
        """Take up what others have committed. ``certain`` is False where even our own place in the log is not."""

    def persevere(self, step: Callable[..., bool], **options: bool) -> bool:
        """Do a step; where something does not answer, wait, go on from where the log is then, and do it again."""

    def rerouted(self, operator: str, table: list[int]) -> None:
        """An operator is about to have another routing table."""

    def claim(self, epoch: int, seconds: float) -> bool:
        """Have the next epoch for this replica alone, to try a change with it."""

    def ready_to_commit(self, decision: Decision, outcome: Outcome) -> bool:
        """Wait until the epoch may be committed. False where another replica has committed it."""

    def was_faster(self, decision: Decision, outcome: Outcome, taken: Taken) -> bool:
        """An entry's place was taken: whether by the same epoch."""

    def is_over(self, decision: Decision) -> bool:
        """Whether another replica has long committed the epoch."""

    def signed(self, outcome: Outcome) -> Json:
        """The fields of an epoch's entry that are for the others."""

    def committed(self, entry: Json, by_us: bool) -> None:
        """This replica has committed an epoch; ``by_us``: and published it."""

    def recover(self) -> None:
        """At the start: publish what is committed and may not be published."""

    def publish(self, manifest: Manifest) -> bool:
        """Publish the last epoch. False where others have gone on from it."""

    def look_again(self) -> None:
        """Before an epoch is published once more: an error where that is not ours to do any more."""

    def rest(self) -> None:
        """There is nothing to do: publish for a replica that died, and look whether the leader has something."""
