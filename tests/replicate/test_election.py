"""Elections on a real ZooKeeper: one leads, the next one when it is gone, and nobody who cannot reach it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import meander as md
from meander.replicate.election import Election
from meander.replicate.zookeeper import EmbeddedZooKeeper

pytest.importorskip("kazoo")
pytestmark = pytest.mark.spark  # a ZooKeeper is a Java


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.close()


def until(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def test_one_leads_and_the_next_one_after_it(server: EmbeddedZooKeeper) -> None:
    a, b, c = (Election(server.address, "flow", name, 2.0) for name in "abc")
    other = Election(server.address, "another", "x", 2.0)
    assert until(a.leads)
    assert until(other.leads), "every flow has a leader of its own"
    assert not b.leads()
    assert not c.leads()
    a.close()
    assert until(b.leads)
    assert not c.leads()
    assert not a.leads()
    for one in (b, c, other):
        one.close()


def test_who_cannot_reach_it_does_not_lead_and_stands_again_when_it_can(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    a = Election(server.address, "flow", "a", 2.0)
    assert until(a.leads)
    server.pause()
    assert until(lambda: not a.leads())
    server.resume()
    assert until(a.leads, 30.0)
    a.close()
    server.close()


def test_a_leader_that_is_deposed_stands_again_behind_all_others(server: EmbeddedZooKeeper) -> None:
    a, b, c = (Election(server.address, "deposed", name, 2.0) for name in "abc")
    assert until(a.leads)
    assert until(lambda: c.leader() == a.leader() is not None)
    first = a.leader()
    c.depose(first)
    assert until(b.leads)
    assert until(lambda: not a.leads())
    c.depose(first)  # it has ended already
    b.step_down()
    assert until(c.leads)
    c.depose(c.leader())
    assert until(a.leads), "it stands again"
    assert not b.leads()
    for one in (b, c):
        one.close()
    for _ in range(3):
        before = a.leader()
        a.step_down()
        assert until(lambda before=before: a.leads() and a.leader() != before), "nobody else is there"
    a.close()


def test_a_candidature_that_was_made_and_not_answered_is_taken_up(server: EmbeddedZooKeeper) -> None:
    a = Election(server.address, "unanswered", "a", 2.0)
    assert until(a.leads)
    unknown = a._client.create("/meander/unanswered/n-", b"a", ephemeral=True, sequence=True)
    b = Election(server.address, "unanswered", "b", 2.0)
    a.step_down()
    assert until(lambda: f"/meander/unanswered/{a.leader()}" == unknown and a.leads()), "else nobody would lead"
    assert len(a._client.get_children("/meander/unanswered")) == 2
    a.step_down()
    assert until(b.leads)
    for one in (a, b):
        one.close()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(md.ConfigError, match="nothing answers there"):
        Election("127.0.0.1:1", "flow", "a", 1.0, patience=1.0)
    with pytest.raises(md.ConfigError, match="say where ZooKeeper is"):
        md.Flow("x").start(tmp_path, replica="a", replication="leader")
