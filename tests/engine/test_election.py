"""Elections on a real ZooKeeper: one leads, the next one when it is gone, and nobody who cannot reach it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import meander as md
from meander.engine.election import Election
from meander.engine.zookeeper import EmbeddedZooKeeper

pytest.importorskip("kazoo")


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


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(md.ConfigError, match="nothing answers there"):
        Election("127.0.0.1:1", "flow", "a", 1.0, patience=1.0)
    with pytest.raises(md.ConfigError, match="say where ZooKeeper is"):
        md.Flow("x").start(tmp_path, replica="a", replication="leader")
