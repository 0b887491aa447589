"""The benchmarks of elasticity: what their answers become, and each of them whole at a tiny size."""

from __future__ import annotations

import argparse
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from meander.bench.harness.report import Report
from meander.bench.load.workload import Workload
from meander.bench.main import add_arguments, run_bench
from meander.bench.rescale import describe, gap_ratios
from meander.bench.rescale.request import RescaleRequest
from meander.bench.scaling.request import ScalingRequest


def answer(gap: float, ours: bool = True) -> dict[str, Any]:
    """An epoch per second, without output for ``gap`` seconds from 110 on and again from 130 on."""
    ends = [float(t) for t in range(101, 200) if not (110 < t < 110 + gap or 130 < t < 130 + gap)]
    epochs = []
    for before, end in zip([100.0, *ends], ends, strict=False):
        epoch = {"end": end, "rows": 10, "first": before - 0.5, "last": end - 0.5}
        slots = 2 if 111 <= end < 131 else 1
        epochs.append({**epoch, "slots": slots, "fetched_from_peers": 5, "fetched_from_store": 0} if ours else epoch)
    changes = []
    for asked, slots in ((110.2, 2), (130.2, 1)):
        change: dict[str, Any] = {"asked": asked, "in_force": asked + 1, "slots": slots}
        moved = {"epoch": 7, "key_groups": 64, "fetched_from_peers": 1000, "fetched_from_store": 10, "failures": []}
        parts = {"stop": 1.0, "repartition": 2.0, "restart": 3.0}
        changes.append({**change, **moved} if ours else {**change, "drained": False, "parts": parts})
    return {"epochs": epochs, "changes": changes, "measured_from": 101.0, "state_bytes": 1_000_000}


def systems() -> dict[str, Any]:
    return {
        "meander": {"1MB": {"hybrid": describe(answer(1)), "eager": describe(answer(3))}},
        "spark-repartition": {"1MB": describe(answer(9, False))},
    }


def test_an_answer_becomes_numbers_for_both_directions() -> None:
    found = describe(answer(3))
    up, down = found["rescales"]["1->2"], found["rescales"]["2->1"]
    assert up["gap_seconds"]["during"] == 3.0
    assert up["carries_load_seconds"] == pytest.approx(2.8)
    assert down["carries_load_seconds"] == pytest.approx(2.8)
    epochs_since = sum(110.2 <= e["end"] < 130.2 for e in answer(3)["epochs"])
    assert up["moved_bytes"] == {"peers": 1000 + 5 * epochs_since, "store": 10}
    assert found["changes"][1] == {"asked": 29.2, "in_force": 30.2}
    assert found["timeline"][0] == [0.0, 10, 1.5, 0.5]


def test_the_ratio_is_the_peers_longest_gap_over_that_of_hybrid() -> None:
    assert gap_ratios(systems(), ["hybrid", "eager"]) == {"spark-repartition": 9.0}
    assert gap_ratios(systems(), ["eager"]) == {"spark-repartition": 3.0}
    assert gap_ratios({"meander": {}}, ["hybrid"]) == {}


def test_requests_survive_their_way_through_json() -> None:
    workload = Workload(keys=5)
    rescale = RescaleRequest("lazy", workload, "folder", "local-cluster[2,1,1024]", "1g", (1, 2), 1.0, 2.0, 5.0, 200.0, 60.0)
    assert RescaleRequest.from_json(json.loads(json.dumps(asdict(rescale)))) == rescale
    assert rescale.system == "meander lazy"
    scaling = ScalingRequest("map", workload, "folder", "local[2]", "1g", 2, 10, 5, 2, 3.0, 0.6, None)
    assert ScalingRequest.from_json(json.loads(json.dumps(asdict(scaling)))) == scaling


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_both_can_be_drawn(tmp_path: Path) -> None:
    from meander.bench.harness.plot import plot

    config = {"strategies": ["hybrid", "eager"], "rate": 2000.0}
    plot(Report("rescale", config, 1, systems(), {"spark-repartition": 9.0}), str(tmp_path / "rescale.png"))
    numbers = {"events_per_second": 1000, "rate": 600, "latency_seconds": {"p50": 0.1, "p99": 0.2, "max": 0.3}}
    shapes = {shape: {"1": numbers, "2": {**numbers, "events_per_second": 1900}} for shape in ("map", "count")}
    plot(Report("scaling", {"slots": [1, 2], "cpu_us": 50}, 1, {"meander": shapes}, {"map 2/1": 1.9}), str(tmp_path / "scaling.png"))
    assert {file.name for file in tmp_path.iterdir()} == {"rescale.png", "scaling.png"}


def run(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run_bench(parser.parse_args(words.split())) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found) == ["bench", "config", "rounds", "systems", "ratios"]
    return found


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_rescale_prints_both_directions_of_every_strategy_and_of_the_peer(capsys: pytest.CaptureFixture[str]) -> None:
    words = "rescale --state 1MB --strategies eager --rate 200 --cpu-us 10 --warmup 1 --seconds 4 --latency-ms 1 --json"
    found = run(capsys, words)
    assert list(found["systems"]["meander"]["1MB"]) == ["eager"]
    for numbers in [*found["systems"]["meander"]["1MB"].values(), found["systems"]["spark-repartition"]["1MB"]]:
        assert list(numbers["rescales"]) == ["1->2", "2->1"]
        for one in numbers["rescales"].values():
            assert one["gap_seconds"]["during"] > 0
            assert one["latency_seconds"]["before"]["p99"] > 0
        assert len(numbers["changes"]) == 2
        assert numbers["timeline"]
    for one in found["systems"]["meander"]["1MB"]["eager"]["rescales"].values():
        assert one["carries_load_seconds"] > 0
        assert one["moved_bytes"]["peers"] > 0
    assert found["ratios"]["spark-repartition"] > 0


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_scaling_prints_throughput_and_latency_of_both_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "scaling --slots 1,2 --cpu-us 20 --epoch-events 2000 --epochs 4 --warmup 2 --seconds 4 --keys 100 --json")
    assert list(found["systems"]["meander"]) == ["map", "count"]
    for by_slots in found["systems"]["meander"].values():
        assert list(by_slots) == ["1", "2"]
        assert by_slots["1"]["rate"] == by_slots["2"]["rate"], "latency is measured at one rate"
        for numbers in by_slots.values():
            assert numbers["events_per_second"] > 0
            assert numbers["latency_seconds"]["max"] >= numbers["latency_seconds"]["p99"] > 0
    assert list(found["ratios"]) == ["map 2/1", "count 2/1"]
