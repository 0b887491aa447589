"""What a loop asks of the other replicas of its flow, where there are some. ``replicate.follow`` answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from meander.epochs.decision import Decision, Outcome
from meander.state.log import Taken
from meander.state.manifest import Json, Manifest


class Member(Protocol):
    """This replica among the others."""

    name: str

    def now(self) -> float:
        """The time of the next decision: not before that of the last one, whichever replica made it."""

    @property
    def is_leaving(self) -> bool: ...

    def keeps_house(self) -> bool:
        """Whether merges, snapshots and garbage are this replica's work."""

    def mind_leader(self, epoch: int) -> None:
        """There is nothing to do: look whether the leader has something."""

    def step_down(self) -> None:
        """Lead no more, if another replica could."""

    def stepping(self) -> AbstractContextManager[None]:
        """The loop is in a step: replicas that wait for this one see it."""


class Siblings(Protocol):
    """The other replicas, to one loop. In the loop's thread."""

    @property
    def cohort(self) -> Member: ...

    @property
    def may_decide(self) -> bool: ...

    def decided(self, epoch: int) -> Decision | None:
        """What is agreed on for an epoch, if anything is; the cursors are behind it."""

    def agree(self, mine: Decision) -> Decision | None:
        """The decision that counts. None where the epoch is long over."""

    def keep_up(self, certain: bool = True) -> None:
        """Take up what others have committed."""

    def persevere(self, step: Callable[..., bool], **options: bool) -> bool:
        """Do a step; where the store or the cluster does not answer, wait and do it again."""

    def append(self, entry: Json) -> None:
        """Append an entry that holds whatever others have appended before it."""

    def claim(self, epoch: int, seconds: float) -> bool:
        """Have the next epoch for this replica alone, to try a change with it."""

    def ready_to_commit(self, decision: Decision, outcome: Outcome) -> bool:
        """Wait until the epoch may be committed. False where another replica has committed it."""

    def was_faster(self, decision: Decision, outcome: Outcome, taken: Taken) -> bool:
        """An entry's place was taken: whether by the same epoch."""

    def is_over(self, decision: Decision) -> bool:
        """Whether another replica has long committed the epoch."""

    def signed(self, outcome: Outcome) -> Json:
        """What an epoch's entry says for the others."""

    def committed(self, entry: Json, by_us: bool) -> None:
        """This replica has committed an epoch; ``by_us``: and published it."""

    def recover(self) -> None:
        """At the start: publish what is committed and may not be published."""

    def publish(self, manifest: Manifest) -> bool:
        """Publish the last epoch. False where others have gone on from it."""

    def look_again(self) -> None:
        """Before an epoch is published once more: StagedGone where a later one is committed."""

    def stand_in(self, wait: bool) -> bool:
        """Publish for a replica that died between commit and publication. Whether the last epoch is published."""
