"""Generated input: the same rows by seed and position, whatever the split, the machine or the version."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander.connect.generator import SPLIT_ROWS, GeneratorSource, generator
from meander.connect.source import Choice
from meander.connect.wikipedia import SERVERS
from meander.errors import ConfigError

GOLDEN = Path(__file__).parent.parent / "golden"
KINDS: dict[str, dict[str, Any]] = {
    "key_value": {"kind": "key_value", "seed": 7},
    "key_value_skewed": {"kind": "key_value", "seed": 7, "skew": 1.1, "keys": 10_000, "partitions": 2},
    "wikipedia": {"kind": "wikipedia", "seed": 7},
    "wikipedia_raw": {"kind": "wikipedia", "seed": 7, "raw": True},
}


def rows(source: GeneratorSource, partition: int, start: int, count: int, **more: Any) -> pl.DataFrame:
    return source.read({"partition": partition, "start": start, "count": count, **more}).frame


def drain(source: GeneratorSource, now: float = 100.0) -> list[Choice]:
    cursor = source.cursor({}, set())
    choices = []
    while (choice := cursor.choose(now, True)) is not None:
        choices.append(choice)
    assert cursor.finished()
    return choices


@pytest.mark.parametrize("name", KINDS)
def test_the_first_rows_of_a_seed_never_change(name: str) -> None:
    source = generator(**KINDS[name])
    last = source.partitions - 1
    lines = rows(source, last, 0, 5).vstack(rows(source, last, 1_000_000_000, 3)).write_ndjson()
    assert lines == (GOLDEN / f"generator_{name}.jsonl").read_text()


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(KINDS)), start=st.integers(0, 10**12), sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_a_row_is_the_same_whatever_split_it_is_read_in(name: str, start: int, sizes: list[int]) -> None:
    source = generator(**KINDS[name])
    pieces, at = [], start
    for size in sizes:
        pieces.append(rows(source, 0, at, size))
        at += size
    assert pl.concat(pieces).equals(rows(source, 0, start, sum(sizes)))


@pytest.mark.parametrize("name", KINDS)
def test_rows_have_the_described_schema(name: str) -> None:
    source = generator(**KINDS[name])
    assert rows(source, 0, 0, 3).schema == source.schema()


def test_partitions_and_seeds_differ() -> None:
    source = generator("key_value", seed=1, partitions=2, keys=10**9)
    assert not rows(source, 0, 0, 100)["key"].equals(rows(source, 1, 0, 100)["key"])
    assert not rows(source, 0, 0, 100)["key"].equals(rows(generator("key_value", seed=2, partitions=2, keys=10**9), 0, 0, 100)["key"])


@settings(max_examples=40, deadline=None)
@given(events=st.integers(0, 5000), partitions=st.integers(1, 7), limit=st.integers(1, 2000), throttle=st.floats(0.01, 1.0))
def test_every_event_is_in_exactly_one_split_and_splits_are_cut_at_fixed_places(
    events: int, partitions: int, limit: int, throttle: float
) -> None:
    source = generator("wikipedia", events=events, partitions=partitions, max_rows_per_epoch=limit)
    cursor = source.cursor({}, set(), throttle)
    taken: list[int] = []
    while (choice := cursor.choose(0.0, False)) is not None:
        assert 1 <= sum(split.rows for split in choice.splits) <= limit
        for split in choice.splits:
            start, count = split.payload["start"], split.payload["count"]
            assert count <= SPLIT_ROWS
            taken += [index * partitions + split.payload["partition"] for index in range(start, start + count)]
        # A cursor rebuilt from the offset after every epoch goes on exactly there.
        cursor = source.cursor(json.loads(json.dumps(choice.offset)), set(), throttle)
    assert sorted(taken) == list(range(events))
    assert cursor.finished()


def test_large_epochs_are_cut_at_multiples_of_the_split_size() -> None:
    (first, second) = drain(generator("key_value", events=1_100_000))
    assert [(split.payload["start"], split.rows) for split in first.splits] == [(n * SPLIT_ROWS, SPLIT_ROWS) for n in range(4)]
    assert [(split.payload["start"], split.rows) for split in second.splits] == [(1_000_000, 100_000)]


def test_with_a_rate_events_become_available_as_time_goes_by_and_are_born_when_due() -> None:
    source = generator("key_value", events=25, rate=10, partitions=2)
    cursor = source.cursor({}, set())
    assert cursor.choose(1000.0, True) is None
    choice = cursor.choose(1001.05, True)
    assert choice is not None
    assert sum(split.rows for split in choice.splits) == 10
    assert choice.offset == {"taken": 10, "t0": 1000.0}
    assert [split.born for split in choice.splits] == [(1000.0, 1000.8), (1000.1, 1000.9)]
    times = [
        time.timestamp() for split in choice.splits for time in source.read(split.payload).frame["ts"].dt.replace_time_zone("UTC").to_list()
    ]
    assert times == pytest.approx([1000.0, 1000.2, 1000.4, 1000.6, 1000.8, 1000.1, 1000.3, 1000.5, 1000.7, 1000.9])
    resumed = source.cursor(choice.offset, set())
    rest = resumed.choose(2000.0, True)
    assert rest is not None
    assert sum(split.rows for split in rest.splits) == 15
    assert resumed.finished()


def test_without_a_rate_rows_are_a_millisecond_apart_and_born_now() -> None:
    source = generator("key_value", events=3)
    (choice,) = drain(source, now=55.0)
    assert choice.splits[0].born == (55.0, 55.0)
    assert source.read(choice.splits[0].payload).frame["ts"].dt.to_string("%F %T%.3f").to_list() == [
        f"2024-01-01 00:00:00.00{n}" for n in range(3)
    ]


def test_skew_makes_low_keys_frequent_and_none_makes_all_alike() -> None:
    skewed = rows(generator("key_value", skew=1.0, keys=100), 0, 0, 20_000)["key"]
    assert (skewed.min(), skewed.max()) == (0, 99)
    assert 0.17 < (skewed == 0).mean() < 0.21  # 1 / H(100) = 0.193
    flat = rows(generator("key_value", keys=100), 0, 0, 20_000)["key"].value_counts()["count"]
    assert flat.len() == 100
    assert flat.max() < 300


def test_raw_lines_are_the_edits_as_json() -> None:
    edits = rows(generator("wikipedia", seed=3), 0, 0, 200)
    lines = rows(generator("wikipedia", seed=3, raw=True), 0, 0, 200)["line"].to_list()
    parsed = pl.DataFrame([json.loads(line) for line in lines]).with_columns(
        pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us")
    )
    assert parsed.equals(edits)


def test_edits_look_like_edits() -> None:
    edits = rows(generator("wikipedia"), 0, 0, 50_000)
    assert len(set(SERVERS)) == len(SERVERS) == 300
    assert edits["server_name"].value_counts(sort=True)["server_name"][0] == "en.wikipedia.org"
    assert set(edits["type"].unique()) == {"edit", "new", "log", "categorize"}
    assert 0.1 < edits["bot"].mean() < 0.3
    assert edits["length_new"].min() >= 0
    assert rows(generator("wikipedia", keys=5000, skew=0), 0, 0, 100_000)["server_name"].n_unique() == 5000


def test_the_description_travels_and_compares() -> None:
    source = generator("wikipedia", events=5, rate=2)
    assert pickle.loads(pickle.dumps(source)) == source
    assert source.describe() == "generator wikipedia, 5 events, 2/s, seed 0, partitions 1, keys 300, skew 1.0"


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "tweets"},
        {"rate": 0},
        {"partitions": 0},
        {"keys": 0},
        {"skew": -1},
        {"events": -1},
        {"raw": True},
        {"keys": 10**9, "skew": 1},
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_described(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        generator(**{"kind": "key_value", **wrong})
