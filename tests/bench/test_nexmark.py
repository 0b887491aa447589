"""Nexmark beside Spark: what is measured alike, what the ratios say, and one small run of everything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meander.bench import nexmark
from meander.bench.nexmark.peer import QUERIES, UPDATING, reading
from meander.cli.main import main
from meander.cli.parser import Parser
from meander.nexmark.queries import FLOWS


def numbers(rate: float) -> list[dict[str, Any]]:
    return [{"events_per_second": rate, "epoch_seconds": 1.0, "epoch_seconds_max": 2.0, "wall_ms": {}, "task_ms": {}}]


def test_the_mean_is_over_the_stateful_queries_that_both_can() -> None:
    parser = Parser()
    nexmark.add_arguments(parser)
    arguments = parser.parse_args([])
    results = {
        "q0": {"meander": numbers(100.0), "spark-rocksdb": numbers(400.0)},
        "q5": {"meander": numbers(800.0), "spark-rocksdb": numbers(100.0)},
        "q6": {"meander": numbers(500.0), "spark-rocksdb": []},
        "q9": {"meander": numbers(200.0), "spark-rocksdb": numbers(100.0)},
    }
    report = nexmark._report(arguments, list(results), "spark-rocksdb", results, {})
    assert report.ratios == {"q0": 0.25, "q5": 8.0, "q9": 2.0, nexmark.MEAN: 4.0}
    assert "q6: Spark's own streaming operators cannot express them" in report.text()
    assert json.loads(report.json_line())["systems"]["meander"]["q6"]["events_per_second"] == 500.0
    assert report.config["peers"]["spark-rocksdb"]["spark.sql.shuffle.partitions"] == "2"


def test_the_peer_has_all_queries_but_three() -> None:
    assert set(FLOWS) - set(QUERIES) == {"q4", "q6", "q19"}
    assert set(QUERIES) >= UPDATING
    assert reading("q7") == ["bid", "bid"]
    assert reading("q13") == ["bid"]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_small_run_of_it_ends_with_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    words = "nexmark bench q3 q12 q15 q19 --events 2000 --events-per-epoch 1000 --warmup 1 --json".split()
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["ratios"]) == {"q3", "q12", "q15", nexmark.MEAN}
    assert set(result["systems"]["meander"]) == {"q3", "q12", "q15", "q19"}
