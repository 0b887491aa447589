"""Golden bytes: what was written in format 1 is read for ever, and what is written today is what was written then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.memory_store import MemoryStore
from tests.state.golden import FOLDER, GOLDEN

import meander as md
from meander import testing
from meander.clock import FakeClock
from meander.errors import Corrupted, Fenced
from meander.replicate.membership import from_json
from meander.state.formats import ENTRY, FORMATS, STORE, Format
from meander.state.log import Log, entry_name, read_manifest
from meander.state.manifest import Manifest
from meander.state.segment import LATEST, SOONEST
from meander.state.signs import Said


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_written_today_is_what_was_written_then(name: str) -> None:
    one = GOLDEN[name]
    written = one.write()
    if one.shape is None:
        assert written == golden(name)
    else:
        assert one.shape(written) == one.shape(golden(name))


@pytest.mark.parametrize("name", GOLDEN)
def test_what_was_written_then_is_read_as_what_is_written_today(name: str) -> None:
    one = GOLDEN[name]
    found = one.read(golden(name))
    assert found is not None
    assert repr(found) == repr(one.read(one.write()))


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b'"format":2', "has format 2, and this Meander reads format 1: use a newer Meander"),
        (b'"format":0', "has format 0: it was written before format 1"),
        (b'"farmot":1', "does not say its format: it was written before format 1"),
    ],
)
def test_another_format_is_refused_in_one_sentence(name: str, says: bytes, words: str) -> None:
    one, before = GOLDEN[name], golden(name)
    assert b'"format":1' in before
    if name == "sign.json" and says == b'"farmot":1':
        return  # a sign that cannot be read at all is taken for one that was torn
    with pytest.raises((Corrupted, md.ConfigError), match=words) as refused:
        one.read(before.replace(b'"format":1', says))
    assert "\n" not in str(refused.value)
    assert one.format.name in str(refused.value)


def test_every_format_has_a_golden_file() -> None:
    assert {one.format for one in GOLDEN.values()} == {*FORMATS}
    assert {file.name for file in FOLDER.iterdir()} == {*GOLDEN}
    assert all(one.version == 1 for one in FORMATS)


def test_segments_are_read_to_what_was_in_them() -> None:
    rows, firsts, chapters, frame = GOLDEN["segment.arrow"].read(golden("segment.arrow"))
    assert (rows, chapters) == (3, [([0, 1], SOONEST, LATEST, 3)])
    assert firsts == [frame["__hash"][0], frame["__hash"][2]]
    assert frame["__hash"] == sorted(frame["__hash"])
    found = dict(zip(frame["customer"], zip(frame["totals.n"], frame["totals.sum"], strict=True), strict=True))
    assert found == {"ada": (3, 1.5), "bob": (1, None), None: (2, -0.0)}
    _, _, chapters, frame = GOLDEN["segment-chapters.arrow"].read(golden("segment-chapters.arrow"))
    assert chapters == [([0], 10, 20, 2), ([1], 30, 30, 1)]
    assert frame["__deleted"] == [False, True, False]


def test_the_others_are_read_to_what_was_in_them() -> None:
    read = {name: one.read(golden(name)) for name, one in GOLDEN.items()}
    assert read["piece.arrow"] == {"code": ["de", "de"], "name": ["Germany", "Deutschland"]}
    assert read["names.json"] == {"a.json", "dir/b.json"}
    assert read["staged-partitioned.bin"] == {"n": [1, 3, 2], "day": ["mon", "mon", None]}
    assert read["dead_letters.parquet"] == [
        {"epoch": 7, "operator": "orders", "position": "a.json:3", "reason": "not JSON", "content": '{"a": ['}
    ]
    assert read["decision.json"].splits[0][1].born == (999.0, 999.5)
    assert read["entry-epoch.json"].tables["hours"].floor == 4
    assert read["entry-compaction.json"].tables["totals"].rows == 5
    assert read["entry-routing.json"].routing == {"totals": [0] * 128}
    assert read["entry-trial.json"].trial == {"by": "a", "seconds": 60.0}
    assert read["snapshot.json"].nonces
    assert read["lease.json"] == "process 4711 on worker-1"
    assert read["digests.json"] is True
    assert read["sign.json"].leads_as == "candidate-0000000003"


# -- what may be added within a format --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.endswith(".json")])
def test_a_key_that_a_reader_does_not_know_is_ignored(name: str) -> None:
    one, data = GOLDEN[name], golden(name)
    more = data.replace(b'"format":1', b'"format":1,"of a later Meander":{"x":[1]}')
    found, expected = one.read(more), one.read(data)
    if isinstance(found, dict):
        found.pop("of a later Meander", None)
    assert repr(found) == repr(expected)


def test_a_snapshot_with_more_than_is_known_is_one_without() -> None:
    fields = json.loads(golden("snapshot.json"))
    assert Manifest.from_json({**fields, "later": 1}) == Manifest.from_json(fields)


def test_a_kind_of_entry_that_is_not_known_is_refused() -> None:
    store = MemoryStore()
    Log.take_over(store, FakeClock())
    entry = {"kind": "shuffle", "generation": 1, "position": 1, "nonce": "x"}
    store.put(entry_name(1, 1), ENTRY.write(entry))
    with pytest.raises(Corrupted, match="log entry 1 has the unknown kind 'shuffle': use a newer Meander"):
        read_manifest(store)


def test_a_run_that_a_newer_meander_has_replaced_is_told_so() -> None:
    """Whatever the format of its seal."""
    store = MemoryStore()
    log = Log.take_over(store, FakeClock(seed=1))
    store.put(entry_name(1, 1), b'{"format":9,"generation":2,"position":1,"nonce":"x"}')
    for act in (lambda: log.append({"kind": "pass"}), log.check_owner, lambda: list(log.news())):
        with pytest.raises(Fenced, match=r"generation 1 \(this run\) was replaced"):
            act()


# -- what a run writes ------------------------------------------------------------------------------------------------


def test_the_entries_of_a_run_have_the_keys_of_the_golden_ones(tmp_path: Path) -> None:
    flow = md.Flow("counts")
    words = flow.source("words", testing.source("word string", [[("to",), ("be",)], [("to",)]]))
    words.key_by("word").aggregate(md.count().alias("n"), name="counts").sink("out", md.discard())
    with testing.run(flow, tmp_path / "state") as run:
        run.run()
    for name, kind in ((entry_name(0, 0), "takeover"), (entry_name(1, 1), "epoch")):
        entry = json.loads((tmp_path / "state" / name).read_bytes())
        assert list(entry) == list(json.loads(golden(f"entry-{kind}.json")))


def test_versions_are_numbers_from_1_up() -> None:
    later = Format("thing", 3)
    assert [later.refusal(version) for version in (1, 2, 3)] == [None] * 3
    assert later.refusal(4) == "has format 4, and this Meander reads formats 1 to 3: use a newer Meander"
    for wrong in (0, -1, True, "1", 1.0, None, []):
        assert "written before format 1" in str(STORE.refusal(wrong)), wrong


def test_what_replicas_say_is_read_from_json() -> None:
    assert from_json(json.loads(golden("decision.json"))).rows == 3
    assert Said.from_bytes(golden("sign.json").replace(b'"format":1', b'"format":2')) is None


def test_the_page_of_formats_names_every_field_that_is_stored() -> None:
    page = (FOLDER.parents[2] / "docs" / "formats.md").read_text()
    for name in (name for name in GOLDEN if name.endswith(".json") and name != "supervisor.json"):
        fields = json.loads(golden(name))
        missing = [field for field in fields if f"`{field}`" not in page and f'"{field}"' not in page]
        assert not missing, f"{name}: docs/formats.md does not name {', '.join(missing)}"
    for kind in {json.loads(golden(name))["kind"] for name in GOLDEN if name.startswith("entry-")}:
        assert f"| `{kind}` |" in page
