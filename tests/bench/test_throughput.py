"""A whole benchmark at a tiny size: the object it prints, nothing about its numbers."""

from __future__ import annotations

import argparse
import json

import pytest

from meander.bench.main import add_arguments, run_bench


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_throughput_prints_one_object_with_both_systems_and_their_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = "throughput --events 60000 --epoch-events 30000 --keys 500 --skew 1.1 --rounds 1 --against spark-memory --memory 1g --json"
    assert run_bench(parser.parse_args(words.split())) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found) == ["bench", "config", "rounds", "systems", "ratios"]
    assert (found["bench"], found["rounds"]) == ("throughput", 1)
    assert found["config"]["events"] == 60_000
    assert found["config"]["machine"]["versions"]["pyspark"]
    assert found["config"]["peers"]["spark-memory"]["spark.sql.shuffle.partitions"] == "2"
    assert list(found["systems"]) == ["meander", "spark-memory"]
    for numbers in found["systems"].values():
        assert numbers["events_per_second"] > 0
        assert numbers["epoch_seconds_p95"] >= numbers["epoch_seconds"] > 0
        assert numbers["wall_ms"]
        assert len(numbers["by_round"]) == 1
    ours, peer = (found["systems"][name]["events_per_second"] for name in ("meander", "spark-memory"))
    assert found["ratios"]["spark-memory"] == pytest.approx(ours / peer, abs=0.01)
