"""State against a plain dict: random upserts, deletions, compactions, rescalings and reopenings, with keys of every awkward kind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.state.model import KEY_POOLS, Modelled

from meander.state import compaction as compaction_module
from meander.state import segment as segment_module

ALL_BITS = (1 << 64) - 1
MASKS = {"full hashes": ALL_BITS, "8 hashes": 0xC000_0000_0000_0001, "one hash": 0}
LIMITS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True
)


def operations(keys: list[Any]) -> st.SearchStrategy[list[Any]]:
    key = st.sampled_from(keys)
    value = st.one_of(st.none(), st.integers(-1000, 1000).map(float))
    rows = st.lists(st.tuples(key, value, st.sampled_from([None, "", "a", "b"])), min_size=1, max_size=12)
    small = st.integers(0, 5)
    step = st.one_of(
        st.tuples(st.just("upsert"), rows),
        st.tuples(st.just("upsert"), rows),
        st.tuples(st.just("delete"), st.lists(key, min_size=1, max_size=4)),
        st.tuples(st.just("compact"), small, small, st.integers(1, 5)),
        st.tuples(st.just("compact_as_chosen")),
        st.tuples(st.just("rescale"), st.integers(1, 5)),
        st.tuples(st.just("reopen")),
    )
    return st.lists(step, min_size=1, max_size=12)


@pytest.mark.many
@pytest.mark.parametrize("hashes", MASKS)
@pytest.mark.parametrize("pool", KEY_POOLS)
def test_a_table_equals_a_dict_whatever_is_done_to_it(pool: str, hashes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "BLOCK_ROWS", 2)
    monkeypatch.setattr(compaction_module, "FEWEST", 2)
    monkeypatch.setattr(segment_module, "_FILTERED_ROWS", 1)
    schema, keys = KEY_POOLS[pool]

    @LIMITS
    @given(operations(keys))
    def run(steps: list[Any]) -> None:
        table = Modelled(schema, MASKS[hashes])
        for verb, *arguments in steps:
            getattr(table, verb)(*arguments)
            if verb.startswith("compact"):
                table.check_lookup(keys)
        table.check_lookup(keys)
        table.check()

    run()


def test_a_deleted_key_begins_anew_and_stays_gone_through_compaction() -> None:
    schema, keys = KEY_POOLS["strings"]
    table = Modelled(schema)
    table.upsert([(key, 1.0, "old") for key in keys])
    table.delete(keys[:3])
    table.upsert([(keys[0], 5.0, None)])
    table.compact(0, 0, 9)
    table.compact(1, 0, 9)
    table.check()
    assert table.expected[keys[0]] == (1, 5.0, 5.0, None)
    assert keys[1] not in table.expected


def test_a_merge_above_the_bottom_keeps_deletions_since_older_runs_still_hold_the_key() -> None:
    schema, keys = KEY_POOLS["integers"]
    table = Modelled(schema)
    table.rescale(1)
    table.upsert([(key, 1.0, "old") for key in keys])
    table.delete(keys[:3])
    table.upsert([(keys[4], 5.0, None)])
    table.compact(0, 1, 2)
    assert len(table.manifest.tables["t"].segments) == 2
    table.check()


def test_a_merge_in_pieces_keeps_deletions_though_some_pieces_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of the hash range without a deletion must still fit into one file with a piece that has some."""
    monkeypatch.setattr(compaction_module, "BLOCK_ROWS", 1)
    schema, _ = KEY_POOLS["integers"]
    table = Modelled(schema)
    table.rescale(1)
    everyone = [(number,) for number in range(20)]
    table.upsert([(key, 1.0, "a") for key in everyone])
    table.upsert([(key, 2.0, "b") for key in everyone])
    table.delete([everyone[0]])
    table.compact(0, 1, 2)
    table.check()
    table.check_lookup(everyone)


def test_compaction_takes_only_its_own_key_groups_from_a_run_of_an_older_routing() -> None:
    schema, keys = KEY_POOLS["integers"]
    table = Modelled(schema)
    table.rescale(1)
    for value in range(3):
        table.upsert([(key, float(value), None) for key in keys])
    table.rescale(4)
    table.compact(2, 0, 3)
    shared = [segment for segment in table.manifest.tables["t"].segments if segment.sequence < 3]
    assert shared, "the inputs stay alive for the other slots"
    assert all(segment.groups for segment in shared)
    table.upsert([(key, 9.0, "x") for key in keys])
    table.check()


def test_a_deleted_key_does_not_come_back_from_a_run_that_lives_on_for_other_key_groups() -> None:
    """The deletion is dropped with the last older row; that row is still in a file, which must not be read for this key group."""
    schema, keys = KEY_POOLS["integers"]
    table = Modelled(schema)
    table.rescale(1)
    table.upsert([(key, 1.0, None) for key in keys])
    table.rescale(4)
    table.delete(keys[:6])
    for slot in range(3):
        table.compact(slot, 0, 2)
        table.check()
        table.check_lookup(keys)
    table.rescale(1)
    table.compact(0, 0, 99)
    assert len(table.manifest.tables["t"].segments) == 1
    table.check()
