"""Side outputs of processors: streams of their own, exactly once as the main output, and refused where they are not as declared."""

# ruff: noqa: RUF012

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.errors import FlowError
from meander.plan.change.modify import modify
from meander.state import compaction as compaction_module

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000


class Split(md.Processor):
    """Even values leave by the main output with their number, odd ones by a side output; timers by another."""

    output = {"n": "int64"}
    side_outputs = {"odd": {"v": "int64", "n": "int64"}, "rung": {"at": "timestamp"}}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            state.n += 1
            if row.v == 99:
                ctx.emit((0, "no number"), "odd")
            elif row.v == 98:
                ctx.emit((1,), "ood")
            elif row.v == 97:
                raise ValueError("97")
            elif row.v % 2:
                ctx.emit({"v": row.v, "n": state.n}, "odd")
            else:
                yield (state.n,)
            if row.v == 5:
                ctx.set_timer("3s")

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        ctx.emit((time,), side="rung")


class SplitBatch(md.Processor):
    output = {"n": "int64"}
    side_outputs = {"odd": {"v": "int64", "n": "int64"}, "rung": {"at": "timestamp"}}
    n = md.value("int64", default=0)

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        numbered = rows.join(state, on="k", nulls_equal=True, maintain_order="left").with_columns(
            pl.col("n") + pl.int_range(pl.len()).over("k") + 1
        )
        odd = numbered.filter(pl.col("v") % 2 == 1)
        ctx.emit(odd.select("k", "v", "n"), "odd")
        if (rows["v"] == 97).any():
            raise ValueError("97")
        new = numbered.group_by("k", maintain_order=True).agg(pl.col("n").max())
        timers = rows.filter(pl.col("v") == 5).select("k", (pl.col("ts") + pl.duration(seconds=3)).alias("time"))
        return numbered.filter(pl.col("v") % 2 == 0).select("k", "n"), new, timers

    def on_timers(self, due: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        ctx.emit(due.select("k", at="time"), "rung")
        return None, None


class Model:
    def __init__(self, batch: bool) -> None:
        self.batch, self.n, self.timers = batch, {}, set()  # type: ignore[var-annotated]
        self.main: list[Any] = []
        self.odd: list[Any] = []
        self.rung: list[Any] = []
        self.dead = 0

    def epoch(self, rows: Any) -> None:
        for k in sorted({k for k, _, _ in rows}):
            mine = [(v, ts) for key, v, ts in rows if key == k]
            if any(v >= 97 for v, _ in mine):
                self.dead += len(mine)
                continue
            for v, ts in mine:
                self.n[k] = self.n.get(k, 0) + 1
                (self.odd.append((k, v, self.n[k])) if v % 2 else self.main.append((k, self.n[k])))
                if v == 5:
                    self.timers.add((k, (ts if self.batch else max(t for _, t in mine)) + 3 * SECOND))


def rows_of(out: Any, *columns: Any) -> list[Any]:
    rows = pl.DataFrame(pl.from_arrow(out.table()))
    return sorted(rows.select(*columns).rows()) if rows.height else []


@pytest.mark.many
@pytest.mark.parametrize("seed", range(16))
def test_all_outputs_equal_the_model(tmp_path: Path, seed: int) -> None:
    """In order of time, since a timer in the model goes by the rows alone."""
    rng = random.Random(seed)
    batch = seed % 2 == 1
    bad = (97,) if batch else (97, 98, 99)
    now, epochs = 0, []
    for _ in range(rng.randrange(2, 9)):
        rows = []
        for _ in range(rng.randrange(0, 12)):
            now += rng.choice((0, SECOND))
            rows.append((rng.randrange(4), rng.choice((*range(8), 5, *bad)) if rng.random() < 0.3 else rng.randrange(8), now))
        cut = rng.randrange(len(rows) + 1)
        epochs.append(((0, tuple(rows[:cut])), (0, tuple(rows[cut:]))))
    flow, main, odd, counts, rung = md.Flow("p"), md.memory(), md.memory(), md.memory(), md.memory()
    done = flow.source("events", Script(COLUMNS, tuple(epochs))).watermark("ts").key_by("k")
    split = done.process(SplitBatch if batch else Split, name="p")
    split.sink("main", main)
    split.side("odd").sink("odd", odd)
    split.side("odd", name="more").key_by("v").aggregate(md.count().alias("c"), name="counts").sink("counted", counts)
    split.side("rung", name="rung").sink("ring", rung)
    model = Model(batch)
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, tmp_path, rng.choice((1, 2, 3)), rng.random() < 0.5, ahead=rng.random() < 0.5)
        for splits in epochs:
            assert local.step()
            model.epoch([row for _, rows in splits for row in rows])
            if rng.random() < 0.3:
                local.loop.reroute("p", rebalance(local.loop.routing["p"], rng.randrange(1, 5)))
            if rng.random() < 0.3:
                local = Local(flow, tmp_path, 2)
        local.run(flush=True)
    assert rows_of(main, "k", "n") == sorted(model.main)
    assert rows_of(odd, "k", "v", "n") == sorted(model.odd)
    assert rows_of(rung, "k", pl.col("at").dt.epoch("us")) == sorted(model.timers)
    last = {row["v"]: row["c"] for row in counts.table().to_pylist()} if counts.table().num_rows else {}
    wanted = {v: sum(one[1] == v for one in model.odd) for _, v, _ in model.odd}
    assert last == wanted
    assert local.manifest.totals.get("dead_letters", 0) == model.dead


def flow_of(epochs: Any, processor: Any = Split, read: bool = True) -> tuple[md.Flow, Any, Any]:
    flow, main, odd = md.Flow("p"), md.memory(), md.memory()
    split = flow.source("events", Script(COLUMNS, tuple(epochs))).watermark("ts").key_by("k").process(processor, name="p")
    split.sink("main", main)
    if read:
        split.side("odd", name="odd").sink("odd_out", odd)
    return flow, main, odd


ROWS = ((1, 2, 1), (1, 3, 1), (2, 3, 1))


@pytest.mark.parametrize(
    ("v", "reason"),
    [
        (99, "TypeError: it gave n = 'no number' in side_outputs['odd'], which is no Int64"),
        (98, "TypeError: it gave a row to the side output 'ood'; in side_outputs there are odd, rung"),
        (97, "ValueError: 97"),
    ],
)
def test_what_does_not_fit_a_side_output_is_refused_with_all_that_its_key_did(tmp_path: Path, v: int, reason: str) -> None:
    flow, main, odd = flow_of([((0, (*ROWS, (1, v, 2))),), ((0, ((1, 4, 3),)),)])
    local = Local(flow, tmp_path)
    local.run()
    assert main.table().to_pylist() == [{"k": 1, "n": 1}]
    assert odd.table().to_pylist() == [{"k": 2, "v": 3, "n": 1}]
    letters = pl.concat([pl.read_parquet(one) for one in (tmp_path / "dead_letters").glob("*.parquet")])
    assert letters.get_column("reason").to_list() == [reason] * 3


class Wrong(SplitBatch):
    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        case = rows["v"][0]
        if case == 1:
            ctx.emit(rows.select("k"), "ood")
        elif case == 2:
            ctx.emit(rows.select("k", "v"), "odd")
        elif case == 3:
            ctx.emit((1, 2), "odd")
        else:
            ctx.emit(rows)
        return None, None


@pytest.mark.parametrize(
    ("v", "words"),
    [
        (1, "side output 'ood'; in side_outputs there are odd, rung"),
        (2, "no column 'n'"),
        (3, "it gave a tuple to the side output 'odd'; write a polars DataFrame"),
        (4, "on_batch returns its rows"),
    ],
)
def test_a_wrong_frame_of_a_whole_batch_is_the_flow_s_mistake(tmp_path: Path, v: int, words: str) -> None:
    flow, _, _ = flow_of([((0, ((1, v, 1),)),)], Wrong)
    with pytest.raises(FlowError, match=words):
        Local(flow, tmp_path).run()


@pytest.mark.parametrize("processor", [Split, SplitBatch])
def test_a_side_output_that_nobody_reads_is_no_error(tmp_path: Path, processor: Any) -> None:
    flow, main, _ = flow_of([((0, ROWS),)], processor, read=False)
    local = Local(flow, tmp_path)
    local.run(flush=True)
    assert main.table().to_pylist() == [{"k": 1, "n": 1}]
    assert local.manifest.totals.get("dead_letters", 0) == 0


def test_the_main_output_need_not_be_read(tmp_path: Path) -> None:
    flow, odd = md.Flow("p"), md.memory()
    split = flow.source("events", Script(COLUMNS, (((0, ROWS),),))).watermark("ts").key_by("k").process(Split, name="p")
    split.side("odd").sink("odd", odd)
    Local(flow, tmp_path).run()
    assert sorted(odd.table().to_pylist(), key=str) == [{"k": 1, "v": 3, "n": 2}, {"k": 2, "v": 3, "n": 1}]


def test_a_side_output_has_the_key_in_front_and_explain_shows_it() -> None:
    flow, _, _ = flow_of([])
    text = flow.explain()
    assert "process p <- watermark_1: by k: Split(n Int64); side outputs odd, rung" in text
    assert "side odd <- p: side output odd\n      columns: k (Int64), v (Int64), n (Int64)" in text


def test_mistakes_are_told_when_the_flow_is_built() -> None:
    flow = md.Flow("p")
    rows = flow.source("events", Script(COLUMNS, ()))
    split = rows.key_by("k").process(Split, name="p")
    with pytest.raises(FlowError, match=r"processor Split of 'p' has no side output 'ood'; there are odd, rung; did you mean 'odd'\?"):
        split.side("ood")
    with pytest.raises(FlowError, match=r"takes the side output 'odd' of 'events', which is a source; only processors have any"):
        rows.side("odd")
    with pytest.raises(FlowError, match=r"processor Bad: side_outputs: \['late'\] does not say names and their columns"):
        rows.key_by("k").process(type("Bad", (Split,), {"side_outputs": ["late"]}))
    with pytest.raises(FlowError, match=r"processor Bad: side_outputs\['late'\], column 'v': unknown type 'number'"):
        rows.key_by("k").process(type("Bad", (Split,), {"side_outputs": {"late": {"v": "number"}}}))
    with pytest.raises(FlowError, match=r"side output 'late' names 'k', which is a key"):
        rows.key_by("k").process(type("Bad", (Split,), {"side_outputs": {"late": {"k": "int64"}}}))


class Without(Split):
    side_outputs = None


class Quiet(md.Processor):
    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        yield (state.n,)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any: ...


class Wider(Split):
    side_outputs = {"odd": {"v": "int64", "n": "int64", "more": "string"}}


def test_a_change_of_the_processor_changes_its_side_outputs() -> None:
    plan = flow_of([])[0].plan()
    with pytest.raises(FlowError, match=r"side 'odd': processor Without of 'p' has no side output 'odd'; there are none"):
        modify(plan, [md.Replace("p", md.process(Without))])
    with pytest.raises(FlowError, match=r"remove 'p': 'odd' is a side output of it; remove that first"):
        modify(plan, [md.Remove("p")])
    with pytest.raises(FlowError, match=r"remove 'odd': 'odd_out' reads this side output"):
        modify(plan, [md.Remove("odd")])
    after, effects = modify(plan, [md.Replace("p", md.process(Wider))])
    assert after.schema("odd").names() == ["k", "v", "n", "more"]
    assert effects.schemas["odd"] == ("+more String",)
    after, effects = modify(plan, [md.Remove("odd_out"), md.Remove("odd"), md.Replace("p", md.process(Without))])
    assert {node.name for node in after.nodes} == {"events", "watermark_1", "p", "main"}
    assert effects.state["p"].kind == "kept"
    after, _ = modify(plan, [md.Insert("big", md.filter("n > 1"), after="p")])
    assert after.node("main").inputs == ("big",)
    assert after.node("odd").inputs == ("p",), "a side output stays with its processor"
    after, _ = modify(plan, [md.Insert("rung", md.side("rung"), after="p"), md.Insert("rung_out", md.memory(), after="rung")])
    assert after.node("main").inputs == ("p",)
    assert after.schema("rung").names() == ["k", "at"]
    with pytest.raises(FlowError, match="leave out before="):
        modify(plan, [md.Insert("rung", md.side("rung"), after="p", before="main")])


def test_side_outputs_come_and_go_while_the_flow_runs(tmp_path: Path) -> None:
    flow, main, odd = flow_of([((0, ((1, 2 if n == 1 else 3, n),)),) for n in range(1, 8)], Quiet, read=False)
    local = Local(flow, tmp_path, ahead=False)
    assert local.step()
    local.propose(md.Replace("p", md.process(Split)), md.Insert("odd", md.side("odd"), after="p"), md.Insert("odd_out", odd, after="odd"))
    assert local.step()
    assert local.step()
    assert [row["n"] for row in odd.table().to_pylist()] == [2, 3], "the state went on"
    local.propose(md.Remove("odd_out"), md.Remove("odd"), md.Replace("p", md.process(Quiet)))
    local.run()
    assert odd.table().num_rows == 2
    assert [row["n"] for row in main.table().to_pylist()] == [1, 4, 5, 6, 7]
