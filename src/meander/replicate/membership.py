"""One replica among its siblings: their agreements, and the list of living ones.

Replicas work on one store. They agree on two things, both by put-if-absent, so that no replica
waits for another:

- the input of every epoch: ``decide/<generation>/<epoch>``. The first put decides; the other
  replicas run the same input.
- its result: the log's entry. The first append commits; the other replicas use that entry, and
  throw their own work away.

Nothing is lost when a replica dies, at any moment: its siblings are at the same epoch already. A
replica that is slow, or was paused, reads the epochs that were committed meanwhile and continues
from there.

Signs of life (``replicas/<generation>/<name>``) only select the replica that merges segments,
writes snapshots and removes garbage: the first by name among those that live. If two replicas both
take themselves for the first, no harm is done. Signs that cannot be read age like all others
(``signs``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from meander.clock import Clock
from meander.connect.source import Choice, Split
from meander.coordinate.marks import Marks
from meander.epochs.decision import Decision
from meander.errors import Divergent, Retryable
from meander.processes import ProcessId
from meander.state.formats import DECISION, DIGESTS
from meander.state.manifest import Json
from meander.state.signs import LONGEST_LOOK, SILENT_AFTER, Said, Sign, place_of, read_signs
from meander.state.stores.contract import Store

BEAT = 0.5
DEAD_AFTER = SILENT_AFTER
_BEHIND_EVERY = 1.0
_SAID_EVERY = 60.0
AHEAD = 5.0
"""Seconds by which a replica's clock may be ahead of the others'. Signs of life are a second old at most."""
_LOG = logging.getLogger("meander")


def decision_name(generation: int, epoch: int) -> str:
    return f"decide/{generation:08d}/{epoch:012d}"


def to_json(decision: Decision) -> Json:
    """A decision as it is agreed on."""
    splits = [[source, split.payload, split.rows, split.bytes, *split.born] for source, split in decision.splits]
    rest = {"offsets": decision.offsets, "seen": decision.seen, "late": decision.marks.late, "flush": decision.flush}
    return {"epoch": decision.epoch, "now": decision.now, "splits": splits, **rest}


def from_json(fields: Json) -> Decision:
    splits = tuple((source, Split(payload, rows, size, (first, last))) for source, payload, rows, size, first, last in fields["splits"])
    marks = Marks(fields["late"])
    return Decision(fields["epoch"], fields["now"], splits, fields["offsets"], fields["seen"], flush=fields["flush"], marks=marks)


def choices_of(decision: Decision) -> dict[str, Choice]:
    """The choice of every source in a decision."""
    return choices(decision.splits, decision.offsets, decision.seen)


def choices_in(entry: Json) -> dict[str, Choice]:
    """The choice of every source in a committed epoch."""
    splits = tuple((source, Split(payload, 0, 0)) for source, payload in entry["splits"])
    return choices(splits, entry["offsets"], entry["seen"])


def choices(splits: tuple[tuple[str, Split], ...], offsets: Mapping[str, Json], seen: Mapping[str, list[str]]) -> dict[str, Choice]:
    return {
        name: Choice(tuple(split for source, split in splits if source == name), offset, tuple(seen.get(name, ())))
        for name, offset in offsets.items()
    }


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """The operators whose output differs, in the order of the plan, as text.

    >>> difference({"clean": "1", "out": "2"}, {"clean": "3", "out": "4"})
    "operator 'clean' gave out other rows (and so did 'out' behind it)"
    """
    different = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    behind = ", ".join(f"'{name}'" for name in different[1:])
    return f"operator '{different[0]}' gave out other rows" + (f" (and so did {behind} behind it)" if behind else "")


class Leading(Protocol):
    """An election."""

    @property
    def deposes_after(self) -> float:
        """Seconds for which a leader may be waited for in vain."""

    def leads(self) -> bool: ...

    def leader(self) -> str | None:
        """The leader, by the number of its candidature; None if it cannot be known."""

    def depose(self, leader: str) -> None:
        """Have it lead no more, if it still does."""

    def step_down(self) -> None:
        """Give up the lead, if another replica could take it."""

    def close(self) -> None: ...


@dataclass
class Sibling:
    """A replica as its signs of life show it."""

    name: str
    sign: Sign
    changed: float
    """When it said something new last, by our own clock."""
    since: float = 0.0
    """When we first saw its loop in the step that it is in, behind the same epoch."""


class Cohort:
    """This replica's part in it."""

    def __init__(self, store: Store, clock: Clock, name: str, generation: int, election: Leading | None = None) -> None:
        self._store, self._clock = store, clock
        self._election = election
        self.name = name
        self._generation = generation
        self._number = 0
        self._epoch = 0
        self._steps = 0
        self._is_stepping = False
        self._siblings: dict[str, Sibling] = {}
        self._listened: float | None = None
        """When we looked for the others last, if ever."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._leaving = threading.Event()
        self._looked = clock.monotonic()
        self._said = clock.monotonic() - _SAID_EVERY
        self._awaited: tuple[str | None, float] = (None, 0.0)
        """The leader that we wait for, and since when it has led, as far as we know."""
        self._thread = threading.Thread(target=self._watch, name="meander-replicas", daemon=True)
        self.url: str | None = None
        """Where this replica can be asked over HTTP; told to the others."""

    def start(self) -> Cohort:
        self.beat()
        self.look()
        self._thread.start()
        return self

    def leave(self) -> None:
        """Stop all waiting."""
        self._leaving.set()

    @property
    def is_leaving(self) -> bool:
        return self._leaving.is_set()

    def close(self) -> None:
        """Leave: the siblings need not wait to find out."""
        self._leaving.set()
        self._stop.set()
        if self._election is not None:
            self._election.close()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._store.delete(place_of(self._generation, self.name))
        except Retryable:
            return  # then they find out by themselves

    # -- what is agreed on ----------------------------------------------------------------------------------------

    def agreed(self, epoch: int) -> Decision | None:
        """An epoch's input, if it is decided."""
        name = decision_name(self._generation, epoch)
        data = self._store.get(name)
        return None if data is None else from_json(DECISION.read(data, name))

    def agree(self, mine: Decision) -> Decision | None:
        """Decide an epoch's input, unless another replica has. Returns the decision that counts;
        None if it was removed already, because the epoch is long over."""
        data = DECISION.write(to_json(mine))
        try:
            if self._store.put_if_absent(decision_name(self._generation, mine.epoch), data):
                return mine
        except Retryable:
            pass  # whether it is there is seen by looking
        return self.agreed(mine.epoch)

    def decision_before(self, epoch: int) -> str:
        """The name of a decision that is not needed once this epoch is committed. Not its own: a
        sibling may be about to look for it."""
        return decision_name(self._generation, epoch - 1)

    # -- publishing what only one should ----------------------------------------------------------------------------

    def is_published(self, epoch: int) -> bool:
        """Whether a replica has recorded it."""
        return self._store.get(self._published(epoch)) is not None

    def say_published(self, epoch: int) -> str:
        """Record that an epoch is published. Returns the name of the record for the epoch before,
        which is not needed any more."""
        self._store.put(self._published(epoch), self.name.encode())
        return self._published(epoch - 1)

    def _published(self, epoch: int) -> str:
        return f"published/{self._generation:08d}/{epoch:012d}"

    # -- what was computed ------------------------------------------------------------------------------------------

    def object_to(self, entry: Json, digests: Mapping[str, str]) -> None:
        """Another replica has committed a result that differs from ours. Raises Divergent unless
        two of three replicas have our result.

        Only a sibling that differs from the committer objects. A sibling that is past the epoch and
        has not objected agrees with the committer.
        """
        epoch = entry["epoch"]
        # put-if-absent: readers see it whole
        self._store.put_if_absent(self._objection(epoch, self.name), DIGESTS.write({"digests": digests}))
        until = self._clock.monotonic() + DEAD_AFTER
        others = {one.name for one in self.siblings()} - {entry["by"]}
        while others and self._clock.monotonic() < until:
            for name in sorted(others):
                if self._objected(self._objection(epoch, name)) == dict(digests):
                    return  # two against one: the committer finds out, and stops
            self._clock.sleep(0.05)
        self._store.delete(self._objection(epoch, self.name))
        raise Divergent(
            f"replica '{self.name}' has computed something else than '{entry['by']}' in epoch {epoch}: "
            f"{difference(entry['digests'], digests)}. What '{entry['by']}' has computed is published; this replica has stopped. "
            "Code that goes by chance, the clock or the order of a set does that; a processor's ctx.now, ctx.random and ctx.uuid do not"
        )

    def check_objections(self, committed: Mapping[int, Mapping[str, str]]) -> None:
        """Divergent where two siblings have computed the same, and something else than we have committed."""
        against: dict[int, list[Json]] = {}
        for name in self._store.list(f"diverged/{self._generation:08d}/"):
            epoch = int(name.split("/")[2])
            digests = self._objected(name) if epoch in committed else None
            if digests is not None:
                against.setdefault(epoch, []).append(digests)
        for epoch, said in sorted(against.items()):
            if len(said) > 1 and said[0] == said[1] != dict(committed[epoch]):
                raise Divergent(
                    f"replica '{self.name}' has computed something else than two others in epoch {epoch}: "
                    f"{difference(said[0], committed[epoch])}. It had committed that epoch, and it is published; this replica has stopped"
                )

    def _objected(self, name: str) -> Json | None:
        """What a replica has computed that objects; None where it does not, or not any more."""
        data = self._store.get(name)
        return None if data is None else DIGESTS.read(data, name)["digests"]

    def _objection(self, epoch: int, name: str) -> str:
        return f"diverged/{self._generation:08d}/{epoch:012d}/{name}"

    # -- who decides ------------------------------------------------------------------------------------------------

    def leads(self) -> bool:
        """Whether this replica may decide and commit. Without a leader everybody may."""
        return self._election is None or self._election.leads()

    def wait_for_leader(self, since: float) -> None:
        """This replica has an epoch's result since ``since``, and the leader has not committed the
        epoch: depose the leader when its time is over.

        Call it repeatedly. A leader that is as slow as all others is not deposed: no replica has a
        result before it. The time begins anew with every leader, since the next one may be about to
        commit.
        """
        if self._election is not None and (leader := self._leader(self._election)) is not None:
            self._depose_late(self._election, leader, since, self._election.deposes_after, "for the leader to commit")

    def mind_leader(self, epoch: int) -> None:
        """This replica has nothing to do after an epoch, since the leader has decided nothing:
        depose a leader whose loop stands still there.

        Call it repeatedly. A leader that rests between two steps, that publishes, or that runs a
        decided epoch does not stand still: none of these states counts as hanging.
        """
        if self._election is None or (leader := self._leader(self._election)) is None:
            return
        patience = 2 * self._election.deposes_after
        for one in self.siblings():
            said = one.sign.said
            if said is not None and said.step is not None and (said.epoch, said.leads_as) == (epoch, leader):
                self._depose_late(self._election, leader, one.since, patience, f"for '{one.name}' to decide an epoch")

    def _leader(self, election: Leading) -> str | None:
        leader = election.leader()
        if leader != self._awaited[0]:
            self._awaited = (leader, self._clock.monotonic())
        return leader

    def _depose_late(self, election: Leading, leader: str, since: float, patience: float, what: str) -> None:
        """Depose a leader that we have waited for long enough, since then or since it leads."""
        now = self._clock.monotonic()
        if now - max(since, self._awaited[1]) >= patience:
            _LOG.warning(f"replica '{self.name}' has waited {patience:g} s {what}: the leader is deposed")
            self._awaited = (leader, now)
            election.depose(leader)

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """While the loop does something: the others can see that it gets on with it."""
        self._steps += 1
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    def step_down(self) -> None:
        """Let another one lead: we could not get on just now."""
        if self._election is not None:
            self._election.step_down()

    # -- who is there ---------------------------------------------------------------------------------------------

    def keeps_house(self) -> bool:
        """Whether this replica is the leader or, where there is none, the first of those that live."""
        if self._election is not None:
            return self._election.leads()
        return all(self.name < one.name for one in self.siblings())

    def siblings(self) -> list[Sibling]:
        """The others that live."""
        now = self._clock.monotonic()
        if self._listened is not None and now - self._listened > DEAD_AFTER:  # we were paused, or the store was away: no death
            with contextlib.suppress(Retryable):
                self.look()
        with self._lock:
            return [one for one in self._siblings.values() if now - one.changed < DEAD_AFTER]

    def now(self) -> float:
        """The time for a decision of ours: our own clock's, unless that is ahead of the clocks of half of the others.

        Decisions move everybody's time on, and it never goes back: a clock that is an hour ahead would make it stand still for an hour.
        """
        mine, heard = self._clock.now(), self._clock.monotonic()
        said = [(one.sign.said, one.changed) for one in self.siblings()]
        clocks = sorted([mine, *(was.at + heard - changed for was, changed in said if was is not None and was.at is not None)])
        middle = clocks[(len(clocks) - 1) // 2]
        if mine <= middle + AHEAD:
            return mine
        self._say_once(f"the clock of replica '{self.name}' is {mine - middle:.0f} s ahead of the others': it decides by theirs; set it")
        return middle

    def mind_clock(self, decided: float) -> None:
        """Another one has decided an epoch at this time."""
        if (ahead := decided - self._clock.now()) > AHEAD:
            self._say_once(
                f"an epoch was decided {ahead:.0f} s ahead of the clock of replica '{self.name}': timers, idle partitions and windows by "
                "the clock go by that; compare the machines' clocks"
            )

    def _say_once(self, what: str) -> None:
        """And again after a while."""
        now = self._clock.monotonic()
        if now - self._said >= _SAID_EVERY:
            self._said = now
            _LOG.warning(what)

    def is_alive(self, name: str) -> bool:
        return name == self.name or any(one.name == name for one in self.siblings())

    def reached(self, epoch: int) -> None:
        self._epoch = epoch

    def time_to_look(self) -> bool:
        """Once a second: whether the log may have gone on beyond what is left of it."""
        now = self._clock.monotonic()
        if now - self._looked < _BEHIND_EVERY:
            return False
        self._looked = now
        return True

    def beat(self) -> None:
        self._number += 1
        leads = None if self._election is None else self._election.leads()
        said = Said(
            self._number,
            self._epoch,
            ProcessId.mine(),
            self.url,
            self._clock.now(),
            leads,
            self._election.leader() if self._election is not None and leads else None,
            self._steps if self._is_stepping else None,
        )
        self._store.put(place_of(self._generation, self.name), said.to_bytes())

    def look(self) -> None:
        """Read the others' signs of life: as many objects as there are replicas."""
        with self._lock:
            known = [one.sign for one in self._siblings.values()]
        signs = read_signs(self._store, self._generation, known)
        now = self._clock.monotonic()
        with self._lock:
            before, self._siblings = self._siblings, {}
            deaf, self._listened = 0.0 if self._listened is None else max(0.0, now - self._listened - LONGEST_LOOK), now
            for sign in signs:
                if sign.name != self.name:
                    self._siblings[sign.name] = _seen_again(before.get(sign.name), sign, now, deaf)

    def _watch(self) -> None:
        # An event, not the clock's sleep: leaving must not wait for the next beat.
        difference = ""
        while not self._stop.wait(BEAT):
            try:
                self.beat()
                self.look()
            except Retryable:
                continue  # the store is away: so it is for the others
            except Exception as error:  # whatever it is: a replica that says nothing any more is dead to the others
                if str(error) != difference:
                    difference = str(error)
                    _LOG.exception(f"replica '{self.name}' cannot give a sign of life; it tries again")


def _seen_again(before: Sibling | None, sign: Sign, now: float, deaf: float) -> Sibling:
    """The record of a sibling after a look at its sign. The time in which this replica could not
    read signs (``deaf``) does not count as the sibling's silence."""
    if before is None:
        return Sibling(sign.name, sign, now, now)
    was, said = before.sign.said, sign.said
    stays = was is not None and said is not None and (was.step, was.epoch) == (said.step, said.epoch)
    return Sibling(sign.name, sign, before.changed + deaf if before.sign.data == sign.data else now, before.since if stays else now)
