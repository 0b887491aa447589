"""What a loop does because it is not alone: it takes up what other replicas have decided and committed. Spark-free; see ``cohort``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from meander.clock import Clock
from meander.connect.sink import Sink, is_done_by_one
from meander.engine.cohort import Cohort, choices_in, choices_of
from meander.engine.epoch import Decision, Outcome
from meander.errors import Corrupted
from meander.state.log import Taken
from meander.state.manifest import Json

if TYPE_CHECKING:
    from meander.engine.loop import Loop

_JUDGED = 8
_POLL = 0.01


class Siblings:
    """The other replicas, to one loop. In the loop's thread."""

    def __init__(self, loop: Loop, cohort: Cohort, clock: Clock, sinks: Mapping[str, Sink]) -> None:
        self._loop, self.cohort, self._clock = loop, cohort, clock
        self._followed = loop.log.manifest.epoch
        """The last epoch whose input the cursors are behind."""
        self._judged: dict[int, Json] = {}
        """The entries of the last epochs, to compare ours with."""
        self._by_one = tuple(name for name, sink in sinks.items() if is_done_by_one(sink))
        """Sinks that one replica publishes, and not all."""

    # -- input ----------------------------------------------------------------------------------------------------

    @property
    def may_decide(self) -> bool:
        return self.cohort.leads()

    def decided(self, epoch: int) -> Decision | None:
        """What is agreed on for an epoch, if anything is; the cursors are behind it."""
        agreed = self.cohort.agreed(epoch)
        if agreed is not None and epoch > self._followed:
            self._loop.input.follow({}, choices_of(agreed), agreed.now)
            self._followed = epoch
        return agreed

    def agree(self, mine: Decision) -> Decision | None:
        """The decision that counts, ours or a sibling's; the cursors are behind it. None where the epoch is long over."""
        agreed = self.cohort.agree(mine)
        if agreed is not mine:
            self._loop.input.follow(choices_of(mine), {} if agreed is None else choices_of(agreed), 0.0 if agreed is None else agreed.now)
        if agreed is not None:
            self._followed = agreed.epoch
        return agreed

    # -- the log --------------------------------------------------------------------------------------------------

    def keep_up(self, certain: bool = True) -> None:
        """Take up what siblings have committed. ``certain`` is False where even our own place in the log is not."""
        log = self._loop.log
        epoch = log.manifest.epoch
        if certain:
            self._read_news()
        looks = self.cohort.time_to_look()
        if not certain or (looks and log.is_behind()):
            self._loop.begin_anew(log.catch_up())
            self._followed = log.manifest.epoch
        if looks:
            self.cohort.check_objections({e: was["digests"] for e, was in self._judged.items() if was["by"] == self.cohort.name})
        if log.manifest.epoch > epoch:
            self.cohort.reached(log.manifest.epoch)
            self.publish_theirs()

    def append(self, entry: Json) -> None:
        """Append an entry that holds whatever siblings have appended before it."""
        while True:
            try:
                self._loop.log.append(entry)
                return
            except Taken as taken:
                self.keep_up(taken.certain)

    def ready_to_commit(self, decision: Decision, outcome: Outcome) -> bool:
        """Before an epoch is committed, the one before it is published everywhere. False where somebody has committed ours meanwhile.

        Who does not lead waits until the leader has committed it, or is none any more.
        """
        while self._loop.log.manifest.epoch < decision.epoch and not self.cohort.leads():
            if self.cohort.is_leaving:
                self._loop.settle_lost(outcome)
                return False
            self._clock.sleep(_POLL)
            self.keep_up()
        self.stand_in(wait=True)
        if self._loop.log.manifest.epoch < decision.epoch:
            return True
        self._lost(decision, outcome, certain=True)
        return False

    def was_faster(self, decision: Decision, outcome: Outcome, taken: Taken) -> bool:
        """Our entry's place was taken: whether by the same epoch."""
        self.keep_up(taken.certain)
        if self._loop.log.manifest.epoch < decision.epoch:
            return False
        self._lost(decision, outcome, taken.certain)
        return True

    def signed(self, outcome: Outcome) -> Json:
        """What an epoch's entry says for the others."""
        return {"by": self.cohort.name, "digests": outcome.digests}

    def committed(self, entry: Json) -> None:
        """We were the first, and have published the epoch."""
        epoch = entry["epoch"]
        self._remember(entry)
        self.cohort.reached(epoch)
        self._loop.tidy.unwanted(self.cohort.decision_before(epoch))
        if self._by_one:
            self._loop.tidy.unwanted(self.cohort.say_published(epoch))

    def _read_news(self) -> None:
        for entry, before, after in self._loop.log.news():
            if entry["kind"] == "epoch":
                if entry["epoch"] > self._followed:
                    self._loop.input.follow({}, choices_in(entry), entry["now"])
                    self._followed = entry["epoch"]
                self._remember(entry)
            self._loop.committed_elsewhere(entry, before, after)

    def _lost(self, decision: Decision, outcome: Outcome, certain: bool) -> None:
        """A sibling has committed the epoch: what we have made of it is compared with that, and not needed any more."""
        self._loop.settle_lost(outcome if certain else None)
        entry = self._judged.get(decision.epoch)
        if entry is None or (entry["now"], entry["offsets"]) != (decision.now, decision.offsets):
            return
        if entry["digests"] != outcome.digests:
            self.cohort.object_to(entry, outcome.digests)

    def _remember(self, entry: Json) -> None:
        self._judged = {**{e: was for e, was in self._judged.items() if e > entry["epoch"] - _JUDGED}, entry["epoch"]: entry}

    # -- output ---------------------------------------------------------------------------------------------------

    def publish_theirs(self) -> None:
        """Whoever has committed the last epoch may have died before it was published. Where there is a later one, it was published."""
        while True:
            manifest = self._loop.log.manifest
            try:
                self._loop.publish(manifest, [name for name in manifest.staged if name not in self._by_one])
                return
            except (Corrupted, FileNotFoundError):
                self._read_news()
                if self._loop.log.manifest.epoch == manifest.epoch:
                    raise

    def stand_in(self, wait: bool) -> None:
        """Publish the last epoch in sinks that one replica publishes, if the one that committed it died before it did. ``wait`` for it."""
        log = self._loop.log
        while self._by_one and (manifest := log.manifest).epoch and manifest.by != self.cohort.name and manifest.staged:
            if self.cohort.is_published(manifest.epoch):
                return
            if manifest.by is None or not self.cohort.is_alive(manifest.by):
                self._loop.publish(manifest, self._by_one)
                self._loop.tidy.unwanted(self.cohort.say_published(manifest.epoch))
                return
            if not wait or self.cohort.is_leaving:
                return
            self._clock.sleep(_POLL)
            self.keep_up()
