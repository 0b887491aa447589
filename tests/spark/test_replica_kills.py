"""Replicas on real Sparks, killed again and again whatever they do: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from meander.bench.failover import Kept, tend
from meander.bench.harness.processes import end_session
from meander.bench.load.steady import Feed, account, visible
from meander.control.client import Client
from meander.errors import MeanderError
from meander.replicate.zookeeper import EmbeddedZooKeeper

KILLS = int(os.environ.get("MEANDER_KILLS", "100"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["leaderless", "leader"])
def test_a_hundred_kills_during_rescales_and_changes_leave_the_output_whole(mode: str, tmp_path: Path) -> None:
    chance = random.Random(mode)
    feed = Feed(tmp_path / "in", rate=300, keys=2000)
    common = {"system": mode, "input": str(feed.folder), "out": str(tmp_path / "out"), "folder": str(tmp_path), "master": "local[1]"}
    common |= {"memory": "512m", "parallelism": 2, "trigger": 0.3, "serves": True}
    server = EmbeddedZooKeeper(tmp_path / "zookeeper") if mode == "leader" else None
    options = {} if server is None else {"replication": "leader", "zookeeper": server.address, "leader_timeout": 2.0}
    kept = [Kept({**common, "name": name, "options": {"replica": name, **options}}) for name in "abc"]
    kills = rescales = changes = 0
    try:
        feed.start()
        wait(lambda: all(one.up.exists() for one in kept), kept, 120)
        while kills < KILLS:
            tend(kept)
            time.sleep(chance.uniform(0.1, 3.0))
            up = [one for one in kept if one.up.exists()]
            act = chance.random()
            if act < 0.2 and up:
                rescales += told(chance.choice(up), lambda client: client.rescale("counts", chance.choice((1, 2, 3, 4))))
            elif act < 0.35 and up:
                changes += told(chance.choice(up), lambda client: client.modify({"changes": [condition(chance.randrange(1000))]}))
            victim = chance.choice(kept)
            if len(up) > 1 or victim not in up:  # somebody is left
                kills += killed(victim, chance)
        wait(lambda: any(one.up.exists() for one in kept), kept, 120)
        feed.stop()
        wait(lambda: not account(visible(tmp_path / "out"), feed.counts)["lost"], kept, 120)
    finally:
        for one in kept:
            one.let_go()
        if server is not None:
            server.close()
    print(f"{kills} kills, {rescales} rescales and {changes} changes that came into force, {feed.events:,} events")
    assert account(visible(tmp_path / "out"), feed.counts) == {"lost": 0, "doubled": 0}
    assert rescales
    assert changes


def condition(number: int) -> dict[str, object]:
    """Another condition that holds for all."""
    return {"change": "replace", "name": "positive", "operator": {"filter": f"key >= 0 and key < {10**9 + number}"}}


def told(one: Kept, ask: object) -> int:
    """Whether somebody did as they were told; who is killed meanwhile does not."""
    try:
        ask(Client((Path(one.asked["folder"]) / f"{one.name}.url").read_text(), None))  # type: ignore[operator]
    except (MeanderError, OSError):
        return 0
    return 1


def killed(victim: Kept, chance: random.Random) -> bool:
    """Kill all of it, or any one of its processes: its Python, its JVM, a worker."""
    if chance.random() < 0.5:
        victim.up.unlink(missing_ok=True)
        end_session(victim.pid)
        return True
    members = victim.members()
    if not members:
        return False
    try:
        os.kill(chance.choice(members), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def wait(holds: object, kept: list[Kept], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it takes too long"
        tend(kept)
        time.sleep(0.1)
