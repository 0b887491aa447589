"""What benchmarks print, and how their command line refuses what cannot be measured."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import meander as md
from meander.bench.harness.peers import PEERS, peer_settings
from meander.bench.harness.report import Report, Table, parts_table
from meander.bench.main import BENCHES, add_arguments, run_bench


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


SYSTEMS: dict[str, dict[str, Any]] = {
    "meander": {"events_per_second": 1_400_000, "wall_ms": {"run": 600.0, "commit": 5.0}},
    "spark-memory": {"events_per_second": 300_000, "wall_ms": {"addBatch": 3000.0}},
}


def test_the_json_object_is_the_one_of_the_public_contract() -> None:
    line = Report("throughput", {"events": 5}, 3, SYSTEMS, {"spark-memory": 4.67}).json_line()
    assert "\n" not in line
    found = json.loads(line)
    assert list(found) == ["bench", "config", "rounds", "systems", "ratios"]
    assert found["ratios"] == {"spark-memory": 4.67}


def test_a_number_that_is_none_does_not_get_into_the_json() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        Report("floor", {}, 1, {}, {"spark-memory": float("nan")}).json_line()


def test_a_table_is_aligned() -> None:
    assert Table(("system", "ms"), (("meander", "5"), ("spark", "1,000"))).text().splitlines() == [
        "system      ms",
        "-------  -----",
        "meander      5",
        "spark    1,000",
    ]


def test_parts_are_shown_beside_each_other_though_every_system_has_its_own() -> None:
    table = parts_table("wall ms", SYSTEMS, "wall_ms")
    assert table is not None
    assert table.columns == ("wall ms", "meander", "spark-memory")
    assert table.rows == (("run", "600.0", ""), ("commit", "5.0", ""), ("addBatch", "", "3,000.0"))
    assert parts_table("task ms", SYSTEMS, "task_ms") is None


def test_every_benchmark_has_its_defaults() -> None:
    for name in BENCHES:
        arguments = parse(name)
        assert arguments.bench == name
        assert arguments.json is False
    assert parse("throughput").against == ",".join(PEERS)


def test_peers_have_as_many_state_partitions_as_meander_has_slots() -> None:
    for peer in PEERS:
        settings = peer_settings(peer, 3, "2g")
        assert settings["spark.sql.shuffle.partitions"] == "3"
        assert settings["spark.driver.memory"] == "2g"
    rocksdb = peer_settings("spark-rocksdb", 2, "2g")
    assert rocksdb["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] == "true"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("throughput", "--against", "flink"), "there is no such peer; there are spark-rocksdb, spark-memory"),
        (("throughput", "--events", "1500", "--epoch-events", "1000"), "must be a multiple of --epoch-events 1000"),
        (("throughput", "--rounds", "0"), "--rounds 0: must be at least 1"),
        (("floor", "--spark-setting", "spark.x"), "write NAME=VALUE"),
        (("growth", "--keys", "many"), "write whole numbers"),
        (("growth", "--keys", "0"), "at least one number above 0"),
        (("expiry", "--kinds", "global"), "there are tumbling, sliding, session"),
        (("expiry", "--windows", "5"), "at least 9"),
        (("expiry", "--events", "30"), "must be a multiple of 2 times --keys"),
        (("backfill", "--spans", "minute,decade"), "there are minute, hour, day, 30d, year"),
        (("backfill", "--operators", ""), "give some of tumbling"),
        (("backfill", "--against", "flink"), "there are spark-rocksdb"),
        (("backfill", "--rows", "30"), "must be a multiple of 4"),
        (("failover", "--systems", "flink"), "there are leaderless, leader, passive, spark"),
        (("failover", "--faults", ""), "give some of driver, executor, pause"),
        (("failover", "--rate", "0"), "--rate 0.0: must be above 0"),
        (("modify", "--against", "flink"), "there is no such peer; there are spark-restart, spark-in-session"),
        (("modify", "--state", "big"), "write a size such as 100MB or 1GB"),
        (("modify", "--seconds", "0"), "--seconds 0.0: must be above 0"),
        (("replicas", "--epochs", "39"), "must be at least 40"),
        (("replicas", "--cores", "4000"), "two replicas need 8000 cores"),
        (("replicas", "--rows", "0"), "--rows 0: must be above 0"),
        (("floor", "--plot", "no/such/folder/out.png"), "does not exist"),
        (("rescale", "--state", "big"), "write a size such as 100MB or 1GB"),
        (("rescale", "--state", ","), "give at least one size"),
        (("rescale", "--strategies", "hasty"), "there are eager, lazy, prefetch, hybrid"),
        (("rescale", "--strategies", ""), "give some of eager"),
        (("rescale", "--against", "flink"), "there is no such peer; there is spark-repartition"),
        (("rescale", "--from", "2", "--to", "2"), "that is no rescale"),
        (("rescale", "--rate", "0"), "--rate 0: must be above 0"),
        (("rescale", "--master", "local[2]"), "give at least two"),
        (("scaling", "--slots", "0"), "at least one number above 0"),
        (("scaling", "--slots", "many"), "write whole numbers"),
        (("scaling", "--shapes", "join"), "there are map, count"),
        (("scaling", "--share", "0"), "--share 0: must be above 0"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(md.ConfigError, match=message):
        run_bench(parse(*words))


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meander.bench.harness.plot.find_spec", lambda name: None)
    with pytest.raises(md.ConfigError, match=r"pip install 'meander-streaming\[bench\]'"):
        run_bench(parse("floor", "--plot", "out.png"))


@pytest.mark.many
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_reports_can_be_drawn(tmp_path: Path) -> None:
    from meander.bench.harness.plot import plot

    sizes = {
        name: {"keys": keys, "epoch_seconds": 0.1, "epoch_seconds_p95": 0.2, "epoch_seconds_max": 0.3}
        for name, keys in (("10k", 10_000), ("1M", 1_000_000))
    }
    plot(Report("throughput", {}, 1, SYSTEMS, {"spark-memory": 4.67}), str(tmp_path / "systems.png"))
    plot(Report("growth", {"epoch_events": 100_000}, 1, {"meander": sizes}, {"1M/10k": 1.0}), str(tmp_path / "growth.png"))
    kinds = {"session": {"epochs_bytes": [1, 2, 2], "epochs_ms": [4.0, 3.0]}}
    plot(Report("expiry", {"windows": 9, "events": 1000}, 1, {"meander": kinds}, {}), str(tmp_path / "expiry.png"))
    seen = {"timeline": [[0.0, 0.5, 0.1], [1.0, 0.6, 0.1]], "marks": [[0.5, "driver"]]}
    plot(Report("failover", {}, 1, {"leaderless": seen, "spark": seen}, {}), str(tmp_path / "failover.png"))
    plot(Report("modify", {}, 1, {"meander": {"changes": seen}}, {}), str(tmp_path / "modify.png"))
    assert {file.stem for file in tmp_path.iterdir()} == {"systems", "growth", "expiry", "failover", "modify"}
