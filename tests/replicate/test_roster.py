"""The roster: what the store alone tells of its replicas."""

from __future__ import annotations

import pytest
from tests.memory_store import MemoryStore
from tests.replicate.ballot import Ballot, Candidate

from meander.clock import FakeClock
from meander.replicate.membership import Cohort
from meander.replicate.roster import read_roster
from meander.state.signs import place_of


class Beating(FakeClock):
    """While a reader waits, those that live say so."""

    def __init__(self, *cohorts: Cohort) -> None:
        super().__init__()
        self._cohorts = cohorts

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for one in self._cohorts:
            one.beat()


def keepers(roster: dict[str, object]) -> list[str]:
    return [one["name"] for one in roster["replicas"] if one["keeps_house"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("leader", ["a", "b", "c"])
def test_in_leader_mode_the_leader_keeps_house_and_the_roster_says_so(leader: str) -> None:
    store, ballot = MemoryStore(), Ballot()
    order = leader + "".join(name for name in "abc" if name != leader)
    elections = {name: Candidate(ballot, name) for name in order}
    cohorts = [Cohort(store, FakeClock(), name, 1, elections[name]) for name in "abc"]
    for one in cohorts:
        one.beat()
    roster = read_roster(store, Beating(*cohorts))
    assert keepers(roster) == [leader] == [one.name for one in cohorts if one.keeps_house()]
    assert [one["name"] for one in roster["replicas"] if one["leads"]] == [leader]


def test_without_a_leader_the_first_that_lives_keeps_house() -> None:
    store = MemoryStore()
    a, b, c = (Cohort(store, FakeClock(), name, 1) for name in "abc")
    for one in (a, b, c):
        one.beat()
    roster = read_roster(store, Beating(b, c))
    assert keepers(roster) == ["b"]
    assert [one["state"] for one in roster["replicas"]] == ["silent", "running", "running"]


def test_one_whose_sign_cannot_be_read_is_listed_as_silent() -> None:
    store = MemoryStore()
    b = Cohort(store, FakeClock(), "b", 1)
    b.beat()
    store.put(place_of(1, "a"), b"")
    roster = read_roster(store, Beating(b))
    assert next((one["name"], one["state"], one["process"]) for one in roster["replicas"]) == ("a", "silent", None)
    assert keepers(roster) == ["b"]
