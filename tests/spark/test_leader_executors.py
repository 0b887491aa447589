"""A leader on a real Spark whose driver lives and whose executor does not: another replica commits, and the output is whole."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
from tests.spark.test_replica_kills import wait

from meander.bench.failover import Kept
from meander.bench.harness.processes import end_session
from meander.bench.load.steady import Feed, account
from meander.replicate.zookeeper import EmbeddedZooKeeper

pytest.importorskip("kazoo")


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_leader_whose_executor_hangs_and_dies_is_replaced_and_leads_again_when_it_can(tmp_path: Path) -> None:
    """It hangs, so that Spark does not bring another one for two minutes: who waits for the leader would wait as long."""
    server = EmbeddedZooKeeper(tmp_path / "zookeeper")
    feed = Feed(tmp_path / "in", rate=300, keys=500)
    common = {"system": "leader", "input": str(feed.folder), "out": str(tmp_path / "out"), "folder": str(tmp_path)}
    common |= {"master": "local-cluster[1,1,1024]", "memory": "512m", "parallelism": 1, "trigger": 0.3}
    options = {"replication": "leader", "zookeeper": server.address, "leader_timeout": 2.0}
    kept = {name: Kept({**common, "name": name, "options": {"replica": name, **options}}) for name in "ab"}

    def leads(name: str) -> bool:
        for sign in (tmp_path / "store" / "replicas").glob(f"*/{name}"):
            with contextlib.suppress(ValueError, OSError):  # it is just being written
                return bool(json.loads(sign.read_text()).get("leads"))
        return False

    def outputs() -> list[Path]:
        return sorted((tmp_path / "out").glob("*.parquet"))

    def is_whole() -> bool:
        return account(outputs(), feed.counts)["lost"] == 0

    try:
        feed.start()
        wait(lambda: all(one.up.exists() for one in kept.values()) and outputs(), list(kept.values()), 180)
        wait(lambda: leads("a") != leads("b"), list(kept.values()), 30)
        first, second = ("a", "b") if leads("a") else ("b", "a")
        (executor,) = kept[first].executors()
        os.kill(executor, signal.SIGSTOP)
        there = len(outputs())
        wait(lambda: leads(second) and len(outputs()) > there + 10, list(kept.values()), 60)
        assert executor in kept[first].executors(), "it hangs still, and nobody has replaced it"
        os.kill(executor, signal.SIGKILL)
        end_session(kept[second].pid)  # for good: the deposed one is all there is
        there = len(outputs())
        wait(lambda: leads(first) and len(outputs()) > there + 10, [kept[first]], 120)
        feed.stop()
        wait(is_whole, [kept[first]], 60)
    finally:
        for one in kept.values():
            one.let_go()
        server.close()
    assert account(outputs(), feed.counts) == {"lost": 0, "doubled": 0}
