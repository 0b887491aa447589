"""Sources that gain, lose or widen columns while a flow runs: they go on where they are, and nothing is read twice, lost or forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local
from tests.simulation.whole.actors import Crash

import meander as md

OLD: dict[str, Any] = {"customer": "string", "amount": "int"}
NEW: dict[str, Any] = {**OLD, "country": "string"}
FORMATS = ("json", "csv", "parquet")


def orders(folder: Path, schema: dict[str, Any], format: str = "json", source: str = "in", **limits: Any) -> md.Flow:
    flow = md.Flow("orders")
    read = flow.source("orders", md.files(folder / source, format=format, schema=schema, **limits))
    read.sink("out", md.parquet(folder / "out"))
    read.key_by("customer").aggregate(md.count().alias("n"), md.max("amount").alias("most"), name="totals").sink(
        "sums", md.parquet(folder / "sums")
    )
    return flow


def write(folder: Path, name: str, rows: list[dict[str, Any]], format: str = "json") -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.{format}"
    if format == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif format == "csv":
        pl.DataFrame(rows).write_csv(path)
    else:
        pl.DataFrame(rows, schema_overrides={"amount": pl.Int32}).write_parquet(path, row_group_size=2)


def before(*customers: str) -> list[dict[str, Any]]:
    return [{"customer": customer, "amount": 1} for customer in customers]


def after(*customers: str) -> list[dict[str, Any]]:
    return [{"customer": customer, "amount": 2, "country": "no"} for customer in customers]


def all_of(local: Local) -> None:
    local.loop.input.look()
    local.run()


def applied(local: Local, *changes: Any, **rules: Any) -> Any:
    trial = local.propose(*changes, **rules)
    for _ in range(5):
        if not trial.done.done():
            local.loop.input.look()
            local.step()
    return trial.done.result(0)


def published(folder: Path, name: str = "out") -> list[tuple[Any, ...]]:
    frames = [pl.read_parquet(file) for file in sorted((folder / name).glob("*.parquet"))]
    return sorted(pl.concat(frames, how="diagonal_relaxed").rows(), key=repr)


def totals(folder: Path) -> list[tuple[Any, ...]]:
    return sorted(pl.DataFrame(pl.from_arrow(md.read_state(folder / "state", "totals"))).rows())


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_that_came_is_null_in_files_from_before_and_a_restart_of_the_edited_file_goes_on(tmp_path: Path, format: str) -> None:
    write(tmp_path / "in", "a", before("ada"), format)
    local = Local(orders(tmp_path, OLD, format), tmp_path / "state")
    all_of(local)
    write(tmp_path / "in", "b", before("bob"), format)  # written before, read after
    write(tmp_path / "in", "c", after("cyd"), format)
    effects = applied(local, md.Become(orders(tmp_path, NEW, format))).effects
    assert (effects["go_on"], effects["restarts"], effects["drops"]) == (["orders"], [], [])
    assert effects["schemas"]["orders"] == ["+country String"]
    all_of(local)
    local.loop.close()
    for _ in range(2):  # the file as it is written now, unchanged
        write(tmp_path / "in", "d", before("dan"), format)
        again = Local(orders(tmp_path, NEW, format), tmp_path / "state")
        all_of(again)
        again.loop.close()
    assert published(tmp_path) == [("ada", 1, None), ("bob", 1, None), ("cyd", 2, "no"), ("dan", 1, None)]
    assert totals(tmp_path) == [("ada", 1, 1), ("bob", 1, 1), ("cyd", 1, 2), ("dan", 1, 1)]
    assert "dead_letters" not in again.manifest.totals or again.manifest.totals["dead_letters"] == 0


def test_the_flow_as_first_written_goes_on_with_the_columns_that_are_in_force(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", before("ada"))
    local = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(local)
    applied(local, md.Replace("orders", md.files(tmp_path / "in", format="json", schema=NEW)))
    local.loop.close()
    write(tmp_path / "in", "b", after("bob"))
    first = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(first)
    assert published(tmp_path) == [("ada", 1, None), ("bob", 2, "no")]


def test_a_column_that_nothing_needs_can_go_and_come_back(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", after("ada"))
    local = Local(orders(tmp_path, NEW), tmp_path / "state")
    all_of(local)
    for name, schema in (("b", OLD), ("c", NEW)):
        applied(local, md.Become(orders(tmp_path, schema).plan()))
        write(tmp_path / "in", name, after(name))
        all_of(local)
    assert published(tmp_path) == [("ada", 2, "no"), ("b", 2, None), ("c", 2, "no")]


@pytest.mark.parametrize("format", FORMATS)
def test_a_wider_column_widens_the_state_behind_it(tmp_path: Path, format: str) -> None:
    write(tmp_path / "in", "a", before("ada", "bob"), format)
    local = Local(orders(tmp_path, OLD, format), tmp_path / "state")
    all_of(local)
    wide = {**OLD, "amount": "long"}
    effects = applied(local, md.Become(orders(tmp_path, wide, format).plan())).effects
    assert effects["state"]["totals"] == "kept, wider in most.value"
    local.loop.close()
    again = Local(orders(tmp_path, wide, format), tmp_path / "state")
    (tmp_path / "in" / f"b.{format}").write_bytes((tmp_path / "in" / f"a.{format}").read_bytes())  # with narrow numbers, in Parquet
    all_of(again)
    assert totals(tmp_path) == [("ada", 2, 1), ("bob", 2, 1)]


def test_a_file_that_is_taken_in_part_is_read_on_with_the_new_columns(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", before(*"abcdef"), "parquet")
    local = Local(orders(tmp_path, OLD, "parquet", max_rows_per_epoch=2), tmp_path / "state", ahead=True)
    local.loop.input.look()
    local.step()
    assert local.manifest.offsets["orders"]["partial"]["next"] == 1
    applied(local, md.Become(orders(tmp_path, NEW, "parquet", max_rows_per_epoch=2).plan()))
    all_of(local)
    assert published(tmp_path) == [(name, 1, None) for name in "abcdef"]
    assert [done.decision.rows for done in local.done if done.decision.rows] == [2, 2, 2]


def test_what_was_decided_before_is_read_with_the_columns_of_its_epoch(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / "in", name, after(name))
    local = Local(orders(tmp_path, OLD, max_files_per_epoch=1), tmp_path / "state")
    local.loop.input.look()
    local.step()
    assert local.loop.decisions.begun is not None  # the second file is decided
    applied(local, md.Become(orders(tmp_path, NEW, max_files_per_epoch=1).plan()))
    all_of(local)
    assert published(tmp_path) == [("a", 2, None), ("b", 2, "no"), ("c", 2, "no")]
    assert local.manifest.epoch == 3


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a column that is used is lost": ({"customer": "string"}, r"max\('?amount'?\).*there is no column 'amount'"),
    "a type that narrows": ({**OLD, "amount": "short"}, r"'amount' is Int32 and would be Int16.*can become a wider integer"),
    "another type": ({**OLD, "amount": "string"}, "'amount' is Int32 and would be String"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path, case: str) -> None:
    schema, why = REFUSED[case]
    write(tmp_path / "in", "a", before("ada"))
    local = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(local)
    with pytest.raises(md.FlowError, match=why):
        local.propose(md.Become(orders(tmp_path, schema).plan()) if "lost" not in case else md.Replace("orders", md.files(
            tmp_path / "in", format="json", schema=schema)))  # fmt: skip


def test_a_key_that_becomes_a_wider_float_is_refused_for_its_state(tmp_path: Path) -> None:
    def flow(kind: str) -> md.Flow:
        made = md.Flow("floats")
        read = made.source("orders", md.files(tmp_path / "in", format="json", schema={"x": kind}))
        read.key_by("x").aggregate(md.count().alias("n"), name="totals").sink("out", md.parquet(tmp_path / "out"))
        return made

    (tmp_path / "in").mkdir()
    local = Local(flow("float"), tmp_path / "state")
    with pytest.raises(md.FlowError, match=r"key column 'x' is Float32 and would be Float64.*drop_state=\['totals'\]"):
        local.propose(md.Become(flow("double").plan()))


def test_rows_that_could_be_read_before_take_the_change_back_and_those_that_never_could_do_not(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", before("ada"))
    local = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(local)
    write(tmp_path / "in", "b", [{"customer": "bob", "amount": 1, "country": 7}])
    (tmp_path / "in" / "c.json").write_text("nonsense\n")
    with pytest.raises(md.Rejected, match=r"source 'orders', epoch 2, in/b.json:1: .*country.*with its columns before it could be read"):
        applied(local, md.Become(orders(tmp_path, NEW).plan()))
    all_of(local)
    assert (published(tmp_path), local.manifest.plan["version"]) == ([("ada", 1), ("bob", 1)], 1)
    assert local.manifest.totals["dead_letters"] == 1
    write(tmp_path / "in", "d", after("dan"))
    (tmp_path / "in" / "e.json").write_text("nonsense\n")
    assert applied(local, md.Become(orders(tmp_path, NEW).plan())).epoch == 3
    all_of(local)
    assert (local.manifest.totals["dead_letters"], local.manifest.plan.get("unproven")) == (2, None)


def test_a_change_without_rows_is_on_probation_also_after_a_restart_and_is_taken_back(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", before("ada"))
    local = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(local)
    assert applied(local, md.Become(orders(tmp_path, NEW).plan())).epoch == 2
    local.loop.close()
    again = Local(orders(tmp_path, NEW), tmp_path / "state")
    assert "orders" in again.manifest.plan["unproven"]["watched"]
    write(tmp_path / "in", "b", [{"customer": "bob", "amount": 1, "country": 7}])
    all_of(again)
    assert (published(tmp_path), again.manifest.plan["version"]) == ([("ada", 1), ("bob", 1)], 1)
    again.loop.close()
    write(tmp_path / "in", "c", after("cyd"))
    last = Local(orders(tmp_path, NEW), tmp_path / "state")  # the edited file, which was in force once
    all_of(last)
    assert published(tmp_path) == [("ada", 1), ("bob", 1), ("cyd", 2)]


def test_code_behind_a_source_is_on_probation_with_its_columns(tmp_path: Path) -> None:
    def two_columns(frame: pl.DataFrame) -> pl.DataFrame:
        assert frame.width == 2 or not frame.height, "two columns are needed"
        return frame.select("customer", "amount")

    def flow(schema: dict[str, Any]) -> md.Flow:
        made = md.Flow("strict")
        read = made.source("orders", md.files(tmp_path / "in", format="json", schema=schema))
        read.map_batches(two_columns, name="two").sink("out", md.parquet(tmp_path / "out"))
        return made

    write(tmp_path / "in", "a", before("ada"))
    local = Local(flow(OLD), tmp_path / "state")
    all_of(local)
    write(tmp_path / "in", "b", after("bob"))
    with pytest.raises(md.Rejected, match="two columns are needed"):
        applied(local, md.Replace("orders", md.files(tmp_path / "in", format="json", schema=NEW)))
    all_of(local)
    assert published(tmp_path) == [("ada", 1), ("bob", 2)]


def test_replicas_change_the_columns_of_a_source_together(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", before("ada"))
    a, b = (Local(orders(tmp_path, OLD), tmp_path / "state", replica=name) for name in "ab")
    all_of(a)
    all_of(b)
    write(tmp_path / "in", "b", after("bob"))
    b.loop.input.look()
    trial = a.propose(md.Become(orders(tmp_path, NEW).plan()))
    all_of(a)
    assert trial.done.result(0).epoch == 2
    write(tmp_path / "in", "c", after("cyd"))
    all_of(b)
    assert (b.manifest.epoch, b.manifest.by, b.modifier.plan.version) == (3, "b", 2)
    c = Local(orders(tmp_path, NEW), tmp_path / "state", replica="c")
    write(tmp_path / "in", "d", before("dan"))
    all_of(c)
    assert published(tmp_path) == [("ada", 1, None), ("bob", 2, "no"), ("cyd", 2, "no"), ("dan", 1, None)]


def test_other_input_may_have_any_columns_and_the_same_input_with_other_limits_has_to_say_so(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", before("ada"))
    write(tmp_path / "in2", "z", [{"customer": "zoe", "amount": "much"}])
    local = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(local)
    limited = md.files(tmp_path / "in", format="json", schema=NEW, max_files_per_epoch=1)
    with pytest.raises(md.FlowError, match="say whether the new one continues"):
        local.propose(md.Replace("orders", limited))
    applied(local, md.Replace("orders", limited, resume=True))
    write(tmp_path / "in", "b", before("bob"))
    all_of(local)
    other = md.files(tmp_path / "in2", format="json", schema={**OLD, "amount": "string"})
    with pytest.raises(md.FlowError, match=r"state column 'most\.value' is Int32 and would be String"):
        local.propose(md.Replace("orders", other, resume=False))
    assert applied(local, md.Replace("orders", other, resume=False), drop=["totals"]).effects["drops"] == ["totals"]
    all_of(local)
    assert published(tmp_path) == [("ada", "1", None), ("bob", "1", None), ("zoe", "much", None)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_the_commit_leaves_the_old_columns_or_the_new_ones(tmp_path: Path, when: str) -> None:
    write(tmp_path / "in", "a", before("ada"))
    local = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(local)
    write(tmp_path / "in", "b", after("bob"))
    append = local.loop.log.append

    def dies(entry: Any) -> Any:
        if when == "after":
            append(entry)
        raise Crash

    local.loop.log.append = dies  # type: ignore[method-assign]
    with pytest.raises(Crash):
        applied(local, md.Become(orders(tmp_path, NEW).plan()))
    local.loop.close()
    again = Local(orders(tmp_path, NEW if when == "after" else OLD), tmp_path / "state")
    all_of(again)
    assert published(tmp_path) == ([("ada", 1, None), ("bob", 2, "no")] if when == "after" else [("ada", 1), ("bob", 2)])
    assert totals(tmp_path) == [("ada", 1, 1), ("bob", 1, 2)]
