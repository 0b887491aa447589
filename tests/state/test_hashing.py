"""The key hash is a format: golden values, the text hash against a slow twin, and what must hash alike."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander.state.hashing import hash_keys, hash_series, key_group_bounds, key_groups_of

GOLDEN = Path(__file__).parents[1] / "golden" / "hashes.json"
WORD = (1 << 64) - 1
NAN = float("nan")

CASES: dict[str, pl.Series] = {
    "int8": pl.Series([0, 1, -1, 127, -128, None], dtype=pl.Int8),
    "int32": pl.Series([0, 1, -1, 2**31 - 1, None], dtype=pl.Int32),
    "int64": pl.Series([0, 1, -1, 2**63 - 1, -(2**63), None], dtype=pl.Int64),
    "uint64": pl.Series([0, 1, 2**63, 2**64 - 1, None], dtype=pl.UInt64),
    "boolean": pl.Series([False, True, None]),
    "float32": pl.Series([0.0, -0.0, 1.5, NAN, None], dtype=pl.Float32),
    "float64": pl.Series([0.0, -0.0, 1.5, -1e300, float("inf"), NAN, None]),
    "string": pl.Series(["", "a", "1234567", "12345678", "123456789", "żółw", "🦀" * 5, "a\0", None]),
    "long string": pl.Series(["0123456789" * 7, "0123456789" * 100, "0123456789" * 100 + "0"]),
    "binary": pl.Series([b"", b"a", b"\xff\x00", None]),
    "date": pl.Series([dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1969, 12, 31), None]),
    "datetime_us": pl.Series([dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 1, 5), None], dtype=pl.Datetime("us")),
    "datetime_ms": pl.Series([dt.datetime(2024, 2, 29, 12, 30, 1), None], dtype=pl.Datetime("ms")),
    "duration": pl.Series([dt.timedelta(0), dt.timedelta(seconds=-1), dt.timedelta(days=400), None], dtype=pl.Duration("us")),
    "time": pl.Series([dt.time(0), dt.time(23, 59, 59, 1), None]),
    "null": pl.Series([None, None]),
    "struct": pl.Series(
        [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": None, "b": None}, None], dtype=pl.Struct({"a": pl.Int64(), "b": pl.String()})
    ),
    "struct in struct": pl.Series([{"s": {"a": 1.5}}, {"s": None}, None], dtype=pl.Struct({"s": pl.Struct({"a": pl.Float64()})})),
}
SEVERAL: dict[str, pl.DataFrame] = {
    "string+int": pl.DataFrame({"a": ["", "x", None, "x"], "b": [0, 1, 1, None]}),
    "int+int": pl.DataFrame({"a": [1, 2], "b": [2, 1]}),
    "three": pl.DataFrame({"a": [1.5, NAN], "b": [True, None], "c": ["long enough for words", ""]}),
}


def golden() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(GOLDEN.read_text())
    return found


def current() -> dict[str, list[str]]:
    """What golden/hashes.json was written from, once."""
    one = {name: [f"{h:016x}" for h in hash_series(series).tolist()] for name, series in CASES.items()}
    return one | {name: [f"{h:016x}" for h in hash_keys(frame).tolist()] for name, frame in SEVERAL.items()}


@pytest.mark.parametrize("case", [*CASES, *SEVERAL])
def test_a_hash_never_changes(case: str) -> None:
    assert current()[case] == golden()[case], "stored state would be orphaned: this is a format, change the code back"


def test_golden_hashes_cover_every_case() -> None:
    assert set(golden()) == set(current())


def test_a_hash_is_the_same_in_another_process() -> None:
    code = "import polars as pl; from meander.state.hashing import hash_series; print(hash_series(pl.Series(['a', 'żółw']))[1])"
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(run.stdout) == int(hash_series(pl.Series(["żółw"]))[0])


# -- the specification, once more and slowly ----------------------------------------------------------------------


def slow_mix(word: int) -> int:
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & WORD
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33


def slow_text(data: bytes) -> int:
    hashed = 0xA0761D6478BD642F
    words = [int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "little") for at in range(0, len(data), 8)]
    for place, word in enumerate(words[:8]):
        hashed = slow_mix(((hashed ^ word) * 0xE7037ED1A0B428DB + 8 * place + 1) & WORD)
    if words[8:]:
        behind = [
            slow_mix((word ^ slow_mix(place + 0xA0761D6478BD642F)) * 0xE7037ED1A0B428DB & WORD) for place, word in enumerate(words[8:])
        ]
        hashed = slow_mix(((hashed ^ sum(behind) & WORD) * 0xE7037ED1A0B428DB + 64 + 1) & WORD)
    return slow_mix((hashed + len(data)) & WORD)


def slow(value: Any) -> int:
    if value is None:
        return 0x9E3779B97F4A7C15
    if isinstance(value, float):
        bits = 0x7FF8000000000000 if value != value else int(np.float64(value + 0.0).view(np.uint64))
        return slow_mix((bits + 0xD6E8FEB86659FD93) & WORD)
    if isinstance(value, int):
        return slow_mix((value + 0x2545F4914F6CDD1D) & WORD)
    return slow_text(value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("length", [*range(41), *range(60, 84), 1000, 1001, 4096])
def test_text_of_every_length_hashes_as_specified(length: int) -> None:
    texts = [bytes((i * 37 + length * 11) % 256 for i in range(length)), b"\xff" * length, b"\0" * length]
    assert hash_series(pl.Series(texts, dtype=pl.Binary)).tolist() == [slow_text(text) for text in texts]


@pytest.mark.many
@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=40), st.text(min_size=60, max_size=90)), max_size=20), st.integers(0, 20))
def test_strings_hash_as_specified_also_in_a_slice(texts: list[str | None], skip: int) -> None:
    series = pl.Series(texts, dtype=pl.String)[skip:]
    assert hash_series(series).tolist() == [slow(text) for text in texts[skip:]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), st.one_of(st.none(), st.floats()), st.text(max_size=12)),
        max_size=9,
    )
)
def test_several_columns_hash_as_specified(rows: list[tuple[Any, ...]]) -> None:
    frame = pl.DataFrame(rows, {"a": pl.Int64, "b": pl.Float64, "c": pl.String}, orient="row")
    expected = []
    for row in rows:
        hashed = slow(row[0])
        for value in row[1:]:
            hashed = slow_mix((hashed * 0xE7037ED1A0B428DB + slow(value)) & WORD)
        expected.append(hashed)
    assert hash_keys(frame).tolist() == expected


def test_a_key_of_megabytes_costs_what_its_bytes_cost() -> None:
    """It took a minute: every 8 bytes were a round over all that were still long enough, which was one."""
    rows = pl.Series(["x" * 4_000_000, "x" * 4_000_001, *(f"k{n}" for n in range(1000))])
    began = time.perf_counter()
    hashes = hash_series(rows).tolist()
    assert time.perf_counter() - began < 2.0
    assert len(set(hashes)) == len(rows)


def test_words_of_a_long_key_count_by_their_places() -> None:
    words = [bytes([n]) * 8 for n in range(16)]
    texts = [b"".join(words), b"".join([*words[:8], *reversed(words[8:])]), b"".join(words[:-1]), b"".join(words) + b"\0"]
    assert len(set(hash_series(pl.Series(texts, dtype=pl.Binary)).tolist())) == len(texts)


# -- what must hash alike -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt64])
def test_an_integer_hashes_alike_in_every_width(dtype: pl.DataType) -> None:
    assert hash_series(pl.Series([100], dtype=dtype)).tolist() == [slow(100)]


def test_zero_and_nan_have_one_hash_each() -> None:
    other_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)
    assert len(set(hash_series(pl.Series([0.0, -0.0])).tolist())) == 1
    assert set(hash_series(pl.Series([NAN, -NAN])).tolist()) == set(hash_series(pl.Series(other_nan)).tolist())


def test_an_instant_hashes_alike_in_every_unit() -> None:
    instant = pl.Series([dt.datetime(2024, 2, 29, 12, 30, 1)])
    assert len({int(hash_series(instant.cast(pl.Datetime(unit)))[0]) for unit in ("ms", "us", "ns")}) == 1


def test_hashing_leaves_the_column_as_it_was() -> None:
    series = pl.Series([1, 2, 2**63], dtype=pl.UInt64)
    hash_series(series)
    assert series.to_list() == [1, 2, 2**63]


def test_a_type_without_a_hash_is_refused() -> None:
    with pytest.raises(TypeError, match=r"List.* cannot be hashed"):
        hash_series(pl.Series([[1]]))


@pytest.mark.parametrize("count", [1, 2, 8, 128])
def test_key_groups_are_the_top_bits_and_bounds_cut_between_them(count: int) -> None:
    hashes = np.sort(hash_series(pl.Series(range(1000))))
    groups = key_groups_of(hashes, count)
    assert groups.tolist() == [h * count >> 64 for h in hashes.tolist()]
    assert np.searchsorted(key_group_bounds(count), hashes, "right").tolist() == groups.tolist()
