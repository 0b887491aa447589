"""Tables that are too large to travel with a plan: what they give, when they are written, and how long they stay in the store."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from tests.epochs.test_modification_crashes import Crash, Mortal
from tests.local import Local, Script, constants

import meander as md
from meander.cache.disk import Cache
from meander.cache.tables import OpenTables, lookups_of
from meander.errors import Corrupted, FlowError
from meander.plan import tables as plan_tables
from meander.plan.change.code import pack_changes, unpack_changes
from meander.plan.content import content_digest
from meander.state import lookups
from meander.state.manifest import Manifest
from meander.state.stores.contract import DirStore
from meander.task.physical import CompiledPlans
from meander.worker import Worker

ROWS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64()}
CITIES = pl.DataFrame({"k": [1, 2, 2], "city": ["Rome", "Oslo", "Bern"]})
OTHERS = pl.DataFrame({"k": [1, 3, 2], "city": ["Roma", "Wien", "Bern"]})


@pytest.fixture(autouse=True)
def all_are_large() -> Iterator[None]:
    """Every frame is too large to travel, and has several pieces."""
    with constants(_MOST_BYTES=(plan_tables, 1), PIECE_BYTES=(lookups, 20)):
        yield


def script(epochs: int, start: int = 0) -> tuple[Any, ...]:
    return tuple(((0, tuple((n % 4, n) for n in range(3 * e, 3 * e + 3))),) for e in range(start, start + epochs))


def flow_of(table: Any, epochs: int = 4, how: str = "left", out: Any = None) -> md.Flow:
    flow = md.Flow("static")
    rows = flow.source("events", Script(ROWS, script(epochs)))
    rows.join_static(table, on="k", how=how, name="cities").sink("out", md.memory() if out is None else out)
    return flow


def objects(folder: Path) -> set[str]:
    return {f"tables/{path.name}" for path in (folder / "tables").glob("*")}


def published(folder: Path) -> dict[int, list[tuple[Any, ...]]]:
    """Per epoch, what came out."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for path in sorted(folder.glob("part-*.parquet")):
        found.setdefault(int(path.name.split("-")[1]), []).extend(pl.read_parquet(path).rows())
    return {epoch: sorted(rows, key=str) for epoch, rows in found.items()}


def expected(epoch: int, table: pl.DataFrame) -> list[tuple[Any, ...]]:
    rows = pl.DataFrame([(n % 4, n) for n in range(3 * epoch - 3, 3 * epoch)], schema=ROWS, orient="row")
    return sorted(rows.join(table, on="k", how="left").rows(), key=str)


# -- what they give --------------------------------------------------------------------------------------------------


def some(rng: random.Random, kind: str) -> Any:
    """A value of a key column, of few."""
    if rng.random() < 0.15:
        return None
    number = rng.randrange(6)
    floats = [0.0, -0.0, float("nan"), 1.5, -1.5, float("inf")]
    return {
        "int": number,
        "text": "k" * number * 20,
        "float": floats[number],
        "struct": {"a": number % 2, "b": None if number == 3 else str(number)},
    }[kind]


TYPES = {"int": pl.Int64(), "text": pl.String(), "float": pl.Float64(), "struct": pl.Struct({"a": pl.Int32(), "b": pl.String()})}


def frame_of(rng: random.Random, kinds: Sequence[str], rows: int, extra: dict[str, Any]) -> pl.DataFrame:
    keys = [pl.Series(f"k{n}", [some(rng, kind) for _ in range(rows)], dtype=TYPES[kind], strict=False) for n, kind in enumerate(kinds)]
    return pl.DataFrame([*keys, *(pl.Series(name, [make() for _ in range(rows)], dtype=dtype) for name, (dtype, make) in extra.items())])


@pytest.mark.many
@pytest.mark.parametrize("seed", range(60))
def test_a_stored_table_gives_what_a_frame_gives_row_for_row(seed: int, tmp_path: Path) -> None:
    """The join of Polars with the whole table is the model: any keys, any cut of the rows into batches, in the same order."""
    rng = random.Random(seed)
    kinds = rng.choices(list(TYPES), k=rng.choice((1, 1, 2)))
    values = {
        "v": (pl.Float64(), lambda: rng.choice((None, 1.0, float("nan")))),
        "tags": (pl.List(pl.String()), lambda: rng.choice((None, [], ["a", None]))),
        "at": (pl.Datetime("us", "Europe/Rome"), lambda: rng.randrange(10**15)),
    }
    table = frame_of(rng, kinds, rng.choice((0, 1, 7, 40)), values)
    table = table.with_columns(table.get_column("tags").list.first().cast(pl.Categorical).alias("one"))
    rows = frame_of(rng, kinds, 30, {"v": (pl.Int64(), lambda: rng.randrange(99))})
    how, keys = rng.choice(plan_tables.HOWS), [f"k{n}" for n in range(len(kinds))]
    matching = plan_tables.Matching(tuple(keys), tuple(keys), nulls_equal=rng.random() < 0.5)
    with constants(_MOST_BYTES=(plan_tables, 1 << 20)):
        model = plan_tables.join_static(table, matching, how, "model").lookup
    stored = plan_tables.join_static(table, matching, how, "stored").lookup
    assert isinstance(stored, plan_tables.StoredLookup)
    found = pickle.loads(pickle.dumps(stored))
    assert found.frame is None
    pieces = [*lookups.encode_pieces(table.select(found.kept), keys, matching.nulls_equal)]
    found.find = lookups.LookupTable("tables/x", pieces, {c: table.schema[c] for c in found.kept}).find
    at = 0
    while at < rows.height:
        size = rng.randrange(0, 12)
        batch = rows[at : at + size]
        assert found(batch).equals(model(batch), null_equal=True)
        at += size
    assert len(pieces) > 1 or table.drop_nulls(keys).height < 8


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("small", [False, True])
def test_rows_are_looked_up_in_the_store(tmp_path: Path, parallelism: int, small: bool) -> None:
    """Before and behind state; tasks are not told the table."""
    flow, out, behind = md.Flow("static"), md.memory(), md.memory()
    rows = flow.source("events", Script(ROWS, script(4)))
    rows.join_static(CITIES, on="k", name="cities").sink("out", out)
    sums = rows.key_by("k").aggregate(md.sum("v").alias("v"), name="sums")
    sums.join_static(CITIES, on="k", how="anti", name="nowhere").sink("behind", behind)
    local = Local(flow, tmp_path, parallelism, small)
    with mock.patch.object(plan_tables.StoredLookup, "table", side_effect=AssertionError("nobody has the frame")):
        local.run()
    given = pl.DataFrame([(n % 4, n) for n in range(12)], schema=ROWS, orient="row")
    assert sorted(pl.DataFrame(out.table()).rows()) == sorted(given.join(CITIES, on="k").rows())
    assert set(pl.DataFrame(behind.table()).get_column("k")) == {0, 3}
    assert len({name.split(".")[0] for name in objects(tmp_path)}) == 2  # of the other one the keys are enough


def test_what_a_task_is_told_does_not_grow_with_the_table(tmp_path: Path) -> None:
    told = []
    for rows in (10, 100_000):
        with constants(PIECE_BYTES=(lookups, 64 << 20)):
            local = Local(flow_of(pl.DataFrame({"k": range(rows), "city": "x" * 40})), tmp_path / str(rows))
        told.append(len(pickle.dumps(local.loop.attempts.runner.introduction(8))))
    assert abs(told[1] - told[0]) < 100
    assert told[1] < 20_000


# -- when they are written -------------------------------------------------------------------------------------------


def test_a_restart_with_the_same_table_writes_nothing(tmp_path: Path) -> None:
    first = Local(flow_of(CITIES), tmp_path)
    first.step()
    there = objects(tmp_path)
    assert there == first.manifest.stored_tables()
    puts: list[str] = []
    store = DirStore(tmp_path)
    with mock.patch.object(store, "put", side_effect=lambda name, data: (puts.append(name), DirStore.put(store, name, data))):
        again = Local(flow_of(pl.concat([CITIES[:1], CITIES[1:]])), tmp_path, store=store)
        again.run()
    assert objects(tmp_path) == there == again.manifest.stored_tables()
    assert not [name for name in puts if name.startswith("tables/")]


def test_another_frame_is_another_flow_and_what_a_function_makes_is_taken_as_it_is(tmp_path: Path) -> None:
    """As with tables that travel."""
    Local(flow_of(CITIES), tmp_path / "a").step()
    with pytest.raises(md.ConfigError, match="this one differs"):
        Local(flow_of(OTHERS), tmp_path / "a")

    cities = tmp_path / "cities.arrow"
    CITIES.write_ipc(cities)
    table = lambda: pl.read_ipc(cities)  # noqa: E731  # what a function carries counts as its code; what it reads does not
    out = md.parquet(tmp_path / "out")
    first = Local(flow_of(table, out=out), tmp_path / "b")
    first.step()
    old = objects(tmp_path / "b")
    OTHERS.write_ipc(cities)
    again = Local(flow_of(table, 12, out=out), tmp_path / "b")
    again.run()
    assert published(tmp_path / "out") == {e: expected(e, CITIES if e == 1 else OTHERS) for e in range(1, 13)}
    assert objects(tmp_path / "b") == again.manifest.stored_tables()
    assert old.isdisjoint(objects(tmp_path / "b"))


def test_a_table_that_comes_with_a_change_replaces_the_old_one_which_goes(tmp_path: Path) -> None:
    out = md.parquet(tmp_path / "out")
    local = Local(flow_of(CITIES, 12, out=out), tmp_path / "state")
    local.step()
    old = objects(tmp_path / "state")
    trial = local.propose(md.Become(flow_of(OTHERS, 12, out=out).plan()))
    local.step()
    assert trial.done.result().epoch == 2
    assert old < objects(tmp_path / "state")  # a retained epoch has it
    Local(flow_of(CITIES, 12, out=out), tmp_path / "state").step()  # goes on with the changed plan, whose table is the store's
    again = Local(flow_of(CITIES, 12, out=out), tmp_path / "state")
    again.run()
    assert published(tmp_path / "out") == {e: expected(e, CITIES if e == 1 else OTHERS) for e in range(1, 13)}
    assert objects(tmp_path / "state") == again.manifest.stored_tables()
    assert old.isdisjoint(objects(tmp_path / "state"))


def test_an_earlier_table_that_comes_back_is_not_removed_with_itself(tmp_path: Path) -> None:
    """Its objects wait for their removal when it is put in force again."""
    out = md.parquet(tmp_path / "out")
    local = Local(flow_of(CITIES, 14, out=out), tmp_path / "state")
    plans = [flow_of(table, 14, out=out).plan() for table in (OTHERS, CITIES)]
    local.step()
    for plan in plans:
        local.propose(md.Become(plan))
        local.step()
    local.run()
    assert published(tmp_path / "out") == {e: expected(e, OTHERS if e == 2 else CITIES) for e in range(1, 15)}
    assert objects(tmp_path / "state") == local.manifest.stored_tables()


def test_the_table_of_a_change_that_is_rejected_goes(tmp_path: Path) -> None:
    local = Local(flow_of(CITIES, 12), tmp_path)
    local.step()
    old = objects(tmp_path)

    def no(before: Any, after: Any) -> bool:
        assert old < objects(tmp_path)
        return False

    trial = local.propose(md.Become(flow_of(OTHERS, 12).plan()), guard=no)
    local.step()
    with pytest.raises(md.Rejected):
        trial.done.result()
    local.step()
    assert objects(tmp_path) == old == local.manifest.stored_tables()


def fails(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("a typo")
    return frame


@pytest.mark.parametrize("restarted", [False, True])
def test_a_change_that_is_taken_back_finds_its_old_table(tmp_path: Path, restarted: bool) -> None:
    """Many epochs without a row, longer than anything is retained: the plan before needs its table all the same."""
    empty = (((0, ()),),)
    epochs = (*script(1), *empty * 9, *script(9, 1))

    def flow(table: pl.DataFrame, change: bool = False) -> md.Flow:
        flow = md.Flow("static")
        rows: Any = flow.source("events", Script(ROWS, epochs))
        if change:
            rows = rows.map_batches(fails, schema=ROWS, name="typo")
        rows.join_static(table, on="k", how="left", name="cities").sink("out", md.parquet(tmp_path / "out"))
        return flow

    local = Local(flow(CITIES), tmp_path / "state")
    local.step()
    old = objects(tmp_path / "state")
    local.propose(md.Become(flow(OTHERS, change=True).plan()))
    for _ in range(9):
        local.step()
    assert local.manifest.plan["unproven"]
    assert old < objects(tmp_path / "state")
    if restarted:
        local = Local(flow(CITIES), tmp_path / "state")
    local.run()
    assert {e: rows for e, rows in published(tmp_path / "out").items() if rows} == {
        (e if e == 1 else e + 9): expected(e, CITIES) for e in range(1, 11)
    }
    assert objects(tmp_path / "state") == old == local.manifest.stored_tables()


# -- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.many
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", [*range(1, 26)])
def test_whenever_the_driver_dies_named_tables_are_there_and_others_go(tmp_path: Path, nth: int, after: bool) -> None:
    """At a start, and at a change to another table and back. What is named is whole at every moment."""
    folder, out = tmp_path / "state", md.parquet(tmp_path / "out")
    plans = [flow_of(table, 14, out=out).plan() for table in (OTHERS, CITIES)]
    store = Mortal(folder)
    store.left, store.after = nth, after
    put_if_absent = store.put_if_absent

    def checked(name: str, data: bytes) -> bool:
        if name.startswith("log/") and b'"tables":{"cities"' in data:
            named = Manifest(plan=json.loads(data)["plan"]).stored_tables()
            assert named <= objects(folder), f"an entry names {named - objects(folder)}"
        return bool(put_if_absent(name, data))

    store.put_if_absent = checked  # type: ignore[method-assign]
    epochs: dict[str | None, pl.DataFrame] = {None: CITIES, "m0": OTHERS, "m1": CITIES}
    try:
        local = Local(flow_of(CITIES, 14, out=out), folder, store=store)
        local.step()
        for number, plan in enumerate(plans):
            local.propose(md.Become(plan), request_id=f"m{number}")
            local.step()
        local.run()
    except Crash:
        pass
    again = Local(flow_of(CITIES, 14, out=out), folder)
    again.run()
    assert again.manifest.epoch == 14
    assert objects(folder) == again.manifest.stored_tables()
    assert len(objects(folder)) > 1
    found = published(tmp_path / "out")
    assert sorted(found) == [*range(1, 15)]
    for epoch, rows in found.items():
        assert rows in [expected(epoch, table) for table in epochs.values()]


@pytest.mark.many
@pytest.mark.parametrize("parallelism", [1, 3])
def test_replicas_that_begin_together_agree_on_one_table(tmp_path: Path, parallelism: int) -> None:
    """Each has written it: the one that the log names counts, and the others remove theirs."""
    out = md.parquet(tmp_path / "out")
    replicas = [Local(flow_of(CITIES, 24, out=out), tmp_path / "state", parallelism, replica=name) for name in "abc"]
    assert len({name.split(".")[0] for name in objects(tmp_path / "state")}) == 3
    for _ in range(3):
        for one in replicas:
            one.step()
    assert objects(tmp_path / "state") == replicas[2].manifest.stored_tables()
    late = Local(flow_of(CITIES, 24, out=out), tmp_path / "state", replica="d")
    assert objects(tmp_path / "state") == late.manifest.stored_tables()
    trial = replicas[1].propose(md.Become(flow_of(OTHERS, 24, out=out).plan()))
    for _ in range(3):
        for one in (*replicas[::-1], late):
            one.step()
    at = trial.done.result().epoch
    for _ in range(24):
        for one in (late, *replicas):
            one.step()
    assert published(tmp_path / "out") == {e: expected(e, CITIES if e < at else OTHERS) for e in range(1, 25)}
    assert objects(tmp_path / "state") == late.manifest.stored_tables()


def test_a_replica_that_died_before_its_table_was_named_leaves_nothing_for_good(tmp_path: Path) -> None:
    a = Local(flow_of(CITIES, 12), tmp_path, replica="a")
    Local(flow_of(CITIES, 12), tmp_path, replica="dead")
    a.step()
    assert objects(tmp_path) > a.manifest.stored_tables()
    Local(flow_of(CITIES, 12), tmp_path, replica="c")
    assert objects(tmp_path) == a.manifest.stored_tables()


# -- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_table_that_cannot_be_read_stops_the_flow_and_is_stored_anew(tmp_path: Path, harm: str) -> None:
    folder, out = tmp_path / "state", md.parquet(tmp_path / "out")
    Local(flow_of(CITIES, out=out), folder).step()
    name = min(objects(folder))
    if harm == "missing":
        (folder / name).unlink()
    else:
        data = bytearray((folder / name).read_bytes())
        data[-200] ^= 1
        (folder / name).write_bytes(data)
    with mock.patch.object(DirStore, "get_range", return_value=b"x"):  # it was there a moment ago
        local = Local(flow_of(CITIES, out=out), folder)
    with pytest.raises(Corrupted, match=f"join_static 'cities': its table is {harm}: '{name}'"):
        local.step()
    assert local.manifest.totals.get("dead_letters", 0) == 0
    (folder / name).unlink(missing_ok=True)
    again = Local(flow_of(CITIES, out=out), folder)
    again.run()
    assert published(tmp_path / "out") == {e: expected(e, CITIES) for e in range(1, 5)}


def test_a_store_that_does_not_answer_is_no_fault_of_a_row(tmp_path: Path) -> None:
    local = Local(flow_of(CITIES), tmp_path)
    with mock.patch.object(DirStore, "map", side_effect=md.Retryable("no answer")), pytest.raises(md.Retryable):
        local.step()
    local.run()
    assert local.manifest.totals.get("dead_letters", 0) == 0


def test_a_change_that_is_sent_brings_no_large_table_but_knows_one_in_force(tmp_path: Path) -> None:
    local = Local(flow_of(CITIES, 12), tmp_path)
    local.step()

    def sent(table: pl.DataFrame, how: str) -> Any:
        (change,) = unpack_changes(pack_changes([md.Become(flow_of(table, 12, how).plan())])).changes
        return change

    with pytest.raises(FlowError, match=r"join_static 'cities': its table .3 rows, .* too large to be sent"):
        local.propose(sent(OTHERS, "left"))
    local.propose(sent(CITIES, "inner"))
    local.step()
    assert local.modifier.plan.version == 2


def test_limits_and_what_explain_shows() -> None:
    text = flow_of(CITIES).explain()
    assert f"left on k, with a stored table of 3 rows (0 MB, {content_digest(CITIES)[:12]}): k (Int64), city (String)" in text
    with constants(LARGEST=(plan_tables, 10)), pytest.raises(FlowError, match=r"more than the 0 MB.*join_latest"):
        flow_of(CITIES)
    with pytest.raises(FlowError, match="a column that cannot be stored"):
        flow_of(CITIES.with_columns(pl.Series("what", [object(), None, 1], dtype=pl.Object)))


def test_how_large_a_frame_is_is_known_before_all_of_it_is_packed() -> None:
    rng = np.random.default_rng(1)
    with constants(_MOST_BYTES=(plan_tables, 1_000_000)):
        assert plan_tables._packed(pl.DataFrame({"k": np.ones(3_000_000)})) is not None
        packed: list[int] = []
        ipc = plan_tables._ipc
        with mock.patch.object(plan_tables, "_ipc", side_effect=lambda frame: (packed.append(frame.height), ipc(frame))[1]):
            assert plan_tables._packed(pl.DataFrame({"k": rng.random(3_000_000)})) is None
        assert sum(packed) < 400_000


# -- in a worker -----------------------------------------------------------------------------------------------------


def test_a_worker_lets_go_of_tables_that_no_operator_uses(tmp_path: Path) -> None:
    worker = Worker()
    shelf = worker.tables
    local = Local(flow_of(CITIES, 12), tmp_path / "state", worker=worker)
    local.step()
    assert len(shelf) == 1
    local.propose(md.Become(flow_of(OTHERS, 12).plan()))
    local.step()
    local.step()
    assert len(shelf) == 1
    other = Local(flow_of(CITIES, 70), tmp_path / "other", worker=worker)
    other.step()
    assert len(shelf) == 2
    other.run()
    assert len(shelf) == 1


def test_an_executor_fetches_a_table_once_and_maps_it_from_its_cache(tmp_path: Path) -> None:
    local = Local(flow_of(CITIES), tmp_path / "state")
    executor_cache = mock.Mock(folder=tmp_path, cache=Cache(tmp_path / "cache"))
    reads: list[str] = []
    store = DirStore(tmp_path / "state")
    compiled, marks = CompiledPlans().unpack(local.loop.attempts.runner._program.packed), local.loop.in_force.plan["tables"]
    lookup = lookups_of(compiled.plan)["cities"]
    with mock.patch.object(store, "map", side_effect=lambda name: (reads.append(name), DirStore.map(store, name))[1]):
        for _ in range(2):  # two workers
            OpenTables().lend(compiled, marks, store, executor_cache)
            assert lookup(pl.DataFrame({"k": [2]})).get_column("city").to_list() == ["Oslo", "Bern"]
    assert sorted(reads) == sorted(objects(tmp_path / "state"))
    damaged = next((tmp_path / "cache" / "whole").iterdir())
    damaged.write_bytes(b"nonsense")
    OpenTables().lend(compiled, marks, store, executor_cache)
    assert lookup(pl.DataFrame({"k": [1, 2]})).height == 3


# -- content ---------------------------------------------------------------------------------------------------------


def test_a_digest_is_of_content_and_of_nothing_else() -> None:
    frame = pl.DataFrame(
        {
            "a": ["x", None, "yy"],
            "b": [1.0, None, float("nan")],
            "c": [[1, None], None, []],
            "d": [{"p": True, "q": b"1"}, None, {"p": None, "q": b""}],
            "e": pl.Series(["u", None, "v"], dtype=pl.Categorical),
            "f": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int8, 2)),
        }
    )
    digest = content_digest(frame)
    twice = pl.concat([frame, frame], rechunk=True)
    assert content_digest(twice[3:]) == content_digest(twice[:3]) == digest
    assert content_digest(pl.concat([frame[:1], frame[1:]], rechunk=False)) == digest
    masked = frame.with_columns(pl.when(pl.col("a").is_not_null()).then(pl.col("b").fill_null(7.0)).alias("b"))
    assert content_digest(masked) == digest
    others = [
        frame.rename({"a": "aa"}),
        frame.cast({"c": pl.List(pl.Int32)}),
        frame.with_columns(pl.col("b").fill_nan(None)),
        frame.with_columns(pl.col("b").fill_null(0.0)),
        frame.with_columns(pl.col("a").fill_null("")),
        frame.with_columns(pl.col("c").fill_null([])),
        frame[::-1],
        frame[:2],
    ]
    assert len({digest, *map(content_digest, others)}) == len(others) + 1
