"""The additional steps of a loop that has siblings: it takes over the decisions and commits of
other replicas. See ``membership``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from meander.clock import Clock
from meander.connect.sink import StagedGone, is_done_by_one
from meander.epochs.catching_up import CatchingUp
from meander.epochs.decision import Decision, Outcome
from meander.epochs.events import Listeners
from meander.epochs.in_force import InForce
from meander.epochs.input import Input
from meander.epochs.parts import in_force
from meander.epochs.patience import Patience
from meander.epochs.publish import Publisher
from meander.epochs.tidy import Tidy
from meander.errors import Retryable
from meander.replicate.membership import Cohort, choices_in, choices_of
from meander.state.log import Log, Taken
from meander.state.manifest import Json, Manifest

_JUDGED = 8
_TRIAL_MARGIN = 5.0
_POLL = 0.01


class Followed(Protocol):
    """A loop, as far as other replicas have an effect on it."""

    log: Log
    input: Input
    in_force: InForce
    events: Listeners
    patience: Patience
    publisher: Publisher
    catching_up: CatchingUp
    tidy: Tidy


class Follower:
    """The other replicas, to one loop. In the loop's thread. Implements ``epochs.siblings.Siblings``."""

    replicated = True
    waits_for: type[Retryable] = Retryable

    def __init__(self, loop: Followed, cohort: Cohort, clock: Clock) -> None:
        self._loop, self.cohort, self._clock = loop, cohort, clock
        self._followed = loop.log.manifest.epoch
        """The last epoch whose input the cursors are behind."""
        self._judged: dict[int, Json] = {}
        """The entries of the last epochs, to compare ours with."""
        self._plan: tuple[str, str | None] = ("", None)
        """The plan that the epoch before us ran under."""
        self._delivered = 0
        """The last epoch that is known to this process to be in the sinks that one replica publishes. A start knows of none."""

    @property
    def _by_one(self) -> tuple[str, ...]:
        """Sinks that one replica publishes, and not all."""
        return tuple(name for name, sink in self._loop.in_force.sinks.items() if is_done_by_one(sink))

    # -- this replica ---------------------------------------------------------------------------------------------

    @property
    def who(self) -> str:
        return f"replica '{self.cohort.name}'"

    @property
    def is_leaving(self) -> bool:
        return self.cohort.is_leaving

    def stepping(self) -> AbstractContextManager[None]:
        return self.cohort.stepping()

    def keeps_house(self) -> bool:
        return self.cohort.keeps_house()

    def step_down(self) -> None:
        self.cohort.step_down()

    def rest(self) -> None:
        """Publish for a replica that died, and look whether the leader has something."""
        self.stand_in(wait=False)
        self.cohort.mind_leader(self._loop.log.manifest.epoch)

    # -- input ----------------------------------------------------------------------------------------------------

    @property
    def may_decide(self) -> bool:
        return self.cohort.leads()

    def now(self) -> float:
        return self.cohort.now()

    def decided(self, epoch: int) -> Decision | None:
        """The agreed decision for an epoch, if there is one; the cursors are moved behind it."""
        agreed = self.cohort.agreed(epoch)
        if agreed is not None:
            self.cohort.mind_clock(agreed.now)
        if agreed is not None and epoch > self._followed:
            self._loop.input.follow({}, choices_of(agreed), agreed.now)
            self._followed = epoch
        return agreed

    def agree(self, mine: Decision) -> Decision | None:
        """The decision that counts, ours or a sibling's; the cursors are behind it. None where the epoch is long over."""
        try:
            agreed = self.cohort.agree(mine)
        except BaseException:  # whether it counts is not known: the cursors go back, and follow what is found when the epoch's turn comes
            self._loop.input.follow(choices_of(mine), {})
            raise
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
            self._go_to_the_end()
        if looks:
            self.cohort.check_objections({e: was["digests"] for e, was in self._judged.items() if was["by"] == self.cohort.name})
        if log.manifest.epoch > epoch:
            self.cohort.reached(log.manifest.epoch)
            self.publish_theirs()

    def _go_to_the_end(self) -> None:
        """Be where the log is, whatever was before."""
        epoch = self._loop.log.manifest.epoch
        manifest = self._loop.log.catch_up()
        # A change that is being tried is in force here and not in the log: only an epoch that was committed says otherwise.
        if manifest.epoch > epoch:
            self._take_up_plan(manifest)
        self._loop.catching_up.begin_anew(manifest)
        self._followed = manifest.epoch

    def persevere(self, step: Callable[..., bool], **options: bool) -> bool:
        """Do a step; where the store or the cluster does not answer, wait and do it again, from where the log is then.

        Whatever it is that does not answer, unlike a run of its own: a replica that ends is missed, and its siblings go on meanwhile.
        """
        # Give up the lead before each wait: a store that does not answer this replica may answer
        # another one.
        return self._loop.patience.persevere(
            partial(step, **options), self._mend, self.cohort.step_down, leaves=lambda: self.cohort.is_leaving
        )

    def _mend(self) -> None:
        """Give up everything that was begun, and publish what is committed, by this replica or
        another."""
        self._loop.catching_up.recover_runner()
        self._go_to_the_end()
        manifest = self._loop.log.manifest
        self._loop.events.plan_unsettled(manifest)  # after any failed try the log decides which plan is in force
        self.cohort.reached(manifest.epoch)
        self.publish_theirs()
        self.stand_in(wait=False)

    def append(self, entry: Json) -> None:
        """Append an entry that holds whatever siblings have appended before it."""
        while True:
            try:
                self._loop.log.append(entry)
                return
            except Taken as taken:
                self.keep_up(taken.certain)

    def ready_to_commit(self, decision: Decision, outcome: Outcome) -> bool:
        """Before an epoch is committed, the one before it must be published. False if another
        replica has committed this epoch meanwhile.

        A replica that does not lead waits until the leader has committed the epoch or lost the
        lead, which happens at the latest when its time is over.
        """
        began, self._plan = self._clock.monotonic(), in_force(self._loop.in_force.plan)
        while self._loop.log.manifest.epoch < decision.epoch and not ((free := self._is_free(began)) and self.cohort.leads()):
            if self.cohort.is_leaving:
                self._loop.catching_up.lost(outcome)
                return False
            if free:
                self.cohort.wait_for_leader(began)
            self._clock.sleep(_POLL)
            self.keep_up()
        is_published = self.stand_in(wait=True)
        if self._loop.log.manifest.epoch < decision.epoch:
            if not is_published:  # we leave, and another replica will publish it: an unpublished epoch must stay the last one
                self._loop.catching_up.lost(outcome)
            return is_published
        self._lost(decision, outcome, certain=True)
        return False

    def _is_free(self, began: float) -> bool:
        """Whether the leader may commit an epoch: no living sibling tries a change with it."""
        trial = self._loop.log.manifest.trial
        if trial is None or trial["by"] == self.cohort.name or not self.cohort.is_alive(trial["by"]):
            return True
        return self._clock.monotonic() > began + float(trial["seconds"]) + _TRIAL_MARGIN

    def rerouted(self, operator: str, table: list[int]) -> None:
        self.append({"kind": "routing", "routing": {operator: table}})

    def claim(self, epoch: int, seconds: float) -> bool:
        """Have the next epoch to ourselves, to try a change with it: whether it is still that one."""
        self.append({"kind": "trial", "by": self.cohort.name, "seconds": seconds})
        return self._loop.log.manifest.epoch == epoch - 1

    def was_faster(self, decision: Decision, outcome: Outcome, taken: Taken) -> bool:
        """Our entry's place was taken: whether by the same epoch."""
        self.keep_up(taken.certain)
        if self._loop.log.manifest.epoch < decision.epoch:
            return False
        self._lost(decision, outcome, taken.certain)
        return True

    def is_over(self, decision: Decision) -> bool:
        """Called when an object that an epoch needs is missing: whether siblings have long
        committed the epoch, and removed its input."""
        self.keep_up()
        return self._loop.log.manifest.epoch >= decision.epoch

    def signed(self, outcome: Outcome) -> Json:
        """The fields of an epoch's entry that are for the other replicas."""
        return {"by": self.cohort.name, "digests": outcome.digests}

    def committed(self, entry: Json, by_us: bool) -> None:
        """We were the first. The epoch is published, ``by_us`` or by siblings that have gone on from it."""
        epoch = entry["epoch"]
        self._remember(entry)
        self.cohort.reached(epoch)
        self._loop.tidy.unwanted(self.cohort.decision_before(epoch))
        if self._by_one and by_us:
            self._say_delivered(epoch)

    def _read_news(self) -> None:
        for entry, before, after in self._loop.log.news():
            if entry["kind"] == "epoch":
                if entry["epoch"] > self._followed:
                    self._loop.input.follow({}, choices_in(entry), entry["now"])
                    self._followed = entry["epoch"]
                self._remember(entry)
                self._take_up_plan(after)
            self._loop.catching_up.take(entry, before, after)

    def _take_up_plan(self, manifest: Manifest) -> None:
        """Take over the plan of the last epoch: the plan itself, whether it is on probation, and
        the tables set aside for that."""
        loop, now, then = self._loop, manifest.plan, self._loop.in_force.plan
        # Replicas that begin together may each have stored a table: the one that is in the log counts.
        others = now.get("tables") != then.get("tables")
        if others or in_force(now) != in_force(then) or ("unproven" in now) != ("unproven" in then):
            loop.events.plan_changed(manifest)
        elif "unproven" in now:
            loop.in_force.adopt_probation(now["unproven"])

    def _lost(self, decision: Decision, outcome: Outcome, certain: bool) -> None:
        """A sibling has committed the epoch: our own result is compared with the entry, and then
        dropped."""
        self._loop.catching_up.lost(outcome if certain else None)
        entry = self._judged.get(decision.epoch)
        if entry is None or (entry["now"], entry["offsets"], in_force(entry["plan"])) != (decision.now, decision.offsets, self._plan):
            return
        if entry["digests"] != outcome.digests:
            self.cohort.object_to(entry, outcome.digests)

    def _remember(self, entry: Json) -> None:
        self._judged = {**{e: was for e, was in self._judged.items() if e > entry["epoch"] - _JUDGED}, entry["epoch"]: entry}

    # -- output ---------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """At the start: publish what is committed and may not be published. Our name says nothing: the process that had it is dead."""
        self.publish_theirs()
        if self._by_one:
            self.cohort.look()  # a committer that lives publishes its epoch itself
            self.stand_in(wait=False)

    def publish_theirs(self) -> None:
        """Publish the last epoch, since the replica that committed it may have died before. An
        epoch with a successor was published."""
        while True:
            manifest = self._loop.log.manifest
            if self.publish(manifest, [name for name in manifest.staged if name not in self._by_one]):
                return
            self._read_news()
            if self._loop.log.manifest.epoch == manifest.epoch:
                return  # the entries behind it are collected, too: the next look goes to the log's end

    def publish(self, manifest: Manifest, sinks: Sequence[str] | None = None) -> bool:
        """Publish the last epoch, if it is still the last: an epoch is committed only after the one
        before it was published.

        False if siblings have published it, and removed the staged files, while this replica stood
        still.
        """
        try:
            self._loop.publisher.publish(manifest, sinks)
            return True
        except StagedGone:
            if not self._loop.log.has_later_epoch():
                raise
            return False

    def look_again(self) -> None:
        """Before an epoch is published once more. Where it took long, another one may have published it, and later ones."""
        with contextlib.suppress(Retryable):
            self._loop.log.check_owner()
            if self._loop.log.has_later_epoch():
                raise StagedGone("a later epoch is committed, so this one is published")

    def stand_in(self, wait: bool) -> bool:
        """Publish the last epoch in sinks that one replica publishes, if the process that committed it died before it did. ``wait`` for it.

        Whether it is published.
        """
        log = self._loop.log
        while self._by_one and (manifest := log.manifest).epoch > self._delivered and manifest.staged:
            if self.cohort.is_published(manifest.epoch):
                self._delivered = manifest.epoch
                return True
            # By us: another process had our name, and died before it said that it has published the epoch.
            ours_to_do = manifest.by in (None, self.cohort.name) or not self.cohort.is_alive(manifest.by)
            if ours_to_do:
                if log.has_later_epoch():  # the later epoch's replica had published it; the object that said so has been removed since
                    self._delivered = manifest.epoch
                    return True
                if self.publish(manifest, self._by_one):
                    self._say_delivered(manifest.epoch)
                    return True
            if not wait or self.cohort.is_leaving:
                return False
            self._clock.sleep(_POLL)
            self.keep_up()
        return True

    def _say_delivered(self, epoch: int) -> None:
        self._loop.tidy.unwanted(self.cohort.say_published(epoch))
        self._delivered = epoch
