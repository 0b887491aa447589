"""Grouping: the fast order is the stable order, and a fold's bits do not depend on who folds."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander import aggregates
from meander.state.grouping import fold_rows, fold_states, group_rows, order_by_hash
from meander.state.hashing import hash_keys, key_groups_of

ADVERSARIAL = {
    "equal": lambda n, rng: np.zeros(n, np.uint64),
    "few": lambda n, rng: rng.integers(0, 3, n).astype(np.uint64),
    "equal high bits": lambda n, rng: np.uint64(0xDEAD << 48) | rng.integers(0, 50, n).astype(np.uint64),
    "low bits only, descending": lambda n, rng: np.arange(n, dtype=np.uint64)[::-1].copy(),
    "top bit": lambda n, rng: rng.integers(0, 2, n).astype(np.uint64) << np.uint64(63),
    "all ones beside random": lambda n, rng: np.where(
        rng.random(n) < 0.5, np.uint64(2**64 - 1), rng.integers(0, 2**63, n).astype(np.uint64)
    ),
    "random": lambda n, rng: rng.integers(0, 2**64, n, dtype=np.uint64),
}


@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 64, 65, 1000, 4097])
def test_order_by_hash_is_a_stable_sort(kind: str, size: int) -> None:
    hashes = ADVERSARIAL[kind](size, np.random.default_rng(size))
    before = hashes.copy()
    assert np.array_equal(order_by_hash(hashes), np.argsort(hashes, kind="stable"))
    assert np.array_equal(hashes, before)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 7), st.integers(2**64 - 8, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=70))
def test_order_by_hash_is_a_stable_sort_of_anything(words: list[int]) -> None:
    hashes = np.array(words, np.uint64)
    assert np.array_equal(order_by_hash(hashes), np.argsort(hashes, kind="stable"))


SCHEMA = pl.Schema({"key": pl.Int64(), "value": pl.Float64(), "text": pl.String()})
AGGREGATES = [
    aggregates.count(), aggregates.sum("value"), aggregates.mean("value"), aggregates.var("value"), aggregates.min("value"),
    aggregates.max("value"), aggregates.first("text"), aggregates.last("value"), aggregates.collect("value"), aggregates.top_k("value", 3),
]  # fmt: skip
PARTS = {f"{agg.name}.{part}": spec for agg in AGGREGATES for part, spec in agg.parts(SCHEMA).items()}


def rows(seed: int, nulls: bool) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    values = [None if nulls and rng.random() < 0.2 else float(v) for v in rng.normal(0, 1e6, 300) * 10.0 ** rng.integers(-12, 12, 300)]
    return pl.DataFrame({"key": rng.integers(0, 20, 300), "value": values, "text": [f"t{i}" for i in range(300)]}, SCHEMA)


def folded(frame: pl.DataFrame, splits: int, slots: int, mask: int) -> dict[int, tuple[object, ...]]:
    """An epoch as the engine does it: partial states per split, brought to slots by key group, folded there in split order."""
    partials = []
    for piece in np.array_split(np.arange(frame.height), splits):
        part = frame[piece]
        hashes = hash_keys(part.select("key")) & np.uint64(mask)
        groups = group_rows(part.select("key"), hashes)
        states = fold_rows(part, groups, PARTS)
        partials.append((groups.hashes, pl.DataFrame([part.get_column("key")[groups.heads], *states.values()])))
    hashes, states_of_all = np.concatenate([h for h, _ in partials]), pl.concat([f for _, f in partials])
    result = {}
    for slot in range(slots):
        mine = np.flatnonzero(key_groups_of(hashes, 8) * slots // 8 == slot)
        part = states_of_all[mine]
        groups = group_rows(part.select("key"), hashes[mine])
        merged = pl.DataFrame([part.get_column("key")[groups.heads], *fold_states(part, groups, PARTS).values()])
        result.update({row[0]: row[1:] for row in merged.rows()})
    return result


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("mask", [2**64 - 1, 0xE000_0000_0000_0000, 0])
def test_a_fold_is_the_same_to_the_last_bit_however_keys_are_dealt_to_slots(mask: int, nulls: bool) -> None:
    frame = rows(7, nulls)
    one = folded(frame, splits=5, slots=1, mask=mask)
    assert len(one) == 20
    for slots in (2, 3, 8):
        assert folded(frame, splits=5, slots=slots, mask=mask) == one


def test_a_fold_with_shared_hashes_equals_the_one_without() -> None:
    frame = rows(8, nulls=False)
    assert folded(frame, 4, 2, mask=0) == folded(frame, 4, 2, mask=2**64 - 1)


def test_groups_keep_rows_in_order_and_units_apart() -> None:
    keys = pl.DataFrame({"k": [1, 2, 1, 2, 1, 1]})
    units = np.array([1, 0, 0, 0, 1, 0], np.uint64)
    for mask in (2**64 - 1, 0):
        hashes = hash_keys(keys) & np.uint64(mask)
        groups = group_rows(keys, hashes, units)
        pieces = [groups.order[a:b].tolist() for a, b in zip(groups.starts, [*groups.starts[1:], groups.rows], strict=True)]
        assert sorted(pieces) == [[0, 4], [1, 3], [2, 5]]


def test_zeros_of_both_signs_are_one_group_although_hashes_are_shared() -> None:
    keys = pl.DataFrame({"a": [0.0, -0.0, 0.0, -0.0, None, float("nan"), float("nan")], "b": ["x", "y", "y", "x", "x", "x", "x"]})
    groups = group_rows(keys, np.zeros(7, np.uint64))
    pieces = [groups.order[a:b].tolist() for a, b in zip(groups.starts, [*groups.starts[1:], groups.rows], strict=True)]
    assert sorted(pieces) == [[0, 3], [1, 2], [4], [5, 6]]
