"""A change that is taken back leaves no trace: from the epoch that takes it back on, everything is as if it had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.state import compaction as compaction_module
from meander.state.stores.contract import DirStore

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
LIMITS = settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


class Remind(md.Processor):
    output: ClassVar = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        ctx.set_timer("3s")
        yield (state.n,)

    def on_timer(self, key: Any, timer: Any, state: Any, ctx: Any) -> Any:
        yield (-state.n,)


def same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def fails(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("a typo")
    return frame


def fails_too(frame: pl.DataFrame) -> pl.DataFrame:
    return fails(frame)


def also_same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.head(frame.height)


def epochs(times: list[list[int]]) -> tuple[Any, ...]:
    return tuple(((0, tuple((ts % 3, 1, ts * SECOND) for ts in of)),) for of in times)


def flow_of(times: list[list[int]], fails_at: int, grace: str = "0s") -> tuple[md.Flow, dict[str, Any]]:
    """Windows, sessions, deduplication and a processor of one stream, and another stream that has one row, late."""
    flow, outs = md.Flow("f"), {name: md.memory() for name in ("windows", "sessions", "firsts", "counted", "other")}
    rows = flow.source("a", Script(COLUMNS, epochs(times))).watermark("ts", grace=grace, name="time")
    keyed = rows.key_by("k")
    keyed.window(md.sliding("8s", "2s")).aggregate(md.count().alias("n"), name="w").sink("windows", outs["windows"])
    keyed.window(md.session("2s")).aggregate(md.count().alias("n"), name="s").sink("sessions", outs["sessions"])
    rows.deduplicate("k", ttl="5s", name="d").sink("firsts", outs["firsts"])
    keyed.process(Remind, name="p").sink("counted", outs["counted"])
    late = tuple(((0, ((1, 1, 0),) if number == fails_at else ()),) for number in range(len(times)))
    flow.source("b", Script(COLUMNS, late)).map_batches(same, name="m").sink("other", outs["other"])
    return flow, outs


SHORTER = md.Replace("w", md.aggregate(md.count().alias("n"), window=md.sliding("2s", "2s")))
BAD = md.Replace("m", md.map_batches(fails))
WORSE = md.Replace("m", md.map_batches(fails_too))
GRACE = md.Replace("time", md.watermark("ts", grace="0s"))


def output(outs: dict[str, Any], since: int) -> dict[str, dict[int, list[Any]]]:
    return {name: {e: sorted(f.rows(), key=repr) for e, f in out.epochs().items() if e >= since} for name, out in outs.items()}


def facts(local: Local) -> Any:
    """What of a manifest must be the same."""
    m = local.manifest
    names = sorted({name.split(".")[0] for name in m.tables})
    rows = {name: sorted(pl.DataFrame(pl.from_arrow(md.read_state(local.folder, name))).rows(), key=repr) for name in names}
    heard = {name: (value["mark"], value["late"], {p: at[0] for p, at in value["heard"].items()}) for name, value in m.times.items()}
    plan = (m.plan["digest"], "unproven" in m.plan)
    return {"at": (m.epoch, m.offsets, m.flushed), "tables": sorted(m.tables), "heard": heard, "plan": plan, "rows": rows}


def lost(local: Local) -> set[str]:
    store = DirStore(local.folder)
    return {name for name in local.manifest.segment_names() if store.get(name) is None}


@pytest.mark.many
@LIMITS
@given(st.data())
def test_after_a_change_was_taken_back_everything_is_as_without_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """The change waits for its first rows while windows close and buckets go; restarts, rescales and a second bad change come between."""
    gaps = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=9, max_size=9))
    now = 0
    times = [[now := now + gap for gap in of] for of in gaps]
    changed_at, fails_at = data.draw(st.integers(0, 3)), data.draw(st.integers(5, 7))
    grace, nested = data.draw(st.sampled_from(["0s", "4s"])), data.draw(st.booleans())
    results = []
    for is_changed in (False, True):
        folder = tmp_path_factory.mktemp("taken")
        flow, outs = flow_of(times, fails_at, grace)
        with constants(FEWEST=(compaction_module, 2)):
            local = Local(flow, folder, 1, ahead=False)
            for number in range(len(times)):
                if is_changed and number == changed_at:
                    local.propose(SHORTER, BAD, *([GRACE] if grace != "0s" else []))
                if is_changed and nested and number == changed_at + 1:
                    local.propose(WORSE)
                if is_changed and changed_at + 1 < number < fails_at:
                    if data.draw(st.integers(0, 3)) == 0:
                        local = Local(flow, folder, 2, ahead=False)
                    if data.draw(st.integers(0, 3)) == 0:
                        local.loop.reroute("w", rebalance(local.loop.routing["w"], data.draw(st.integers(1, 3))))
                assert local.step()
                assert ("unproven" in local.manifest.plan) == (is_changed and changed_at <= number < fails_at)
                assert not lost(local)
            after = facts(local)
            local.run(flush=True)
            results.append((after, output(outs, fails_at + 1), facts(local)))
    if grace != "0s":  # timers that have fired have fired
        for after, published, end in results:
            published.pop("counted")
            for found in (after, end):
                found["rows"].pop("p")
                found["tables"] = [name for name in found["tables"] if not name.startswith("p")]
    assert results[0] == results[1]


def test_a_change_that_is_rejected_in_its_first_epoch_leaves_the_manifest_as_without_it(tmp_path: Path) -> None:
    found = []
    for is_changed in (False, True):
        flow, _ = flow_of([[1, 2], [5], [9], [12]], 2)
        local = Local(flow, tmp_path / str(is_changed), 1, ahead=False)
        local.step()
        local.step()
        trial = local.propose(SHORTER, BAD) if is_changed else None
        local.step()
        if trial is not None:
            with pytest.raises(md.Rejected, match="typo"):
                trial.done.result()
        found.append(facts(local))
        local.run(flush=True)
        found.append(facts(local))
    assert found[:2] == found[2:]


def test_what_the_plan_before_needs_goes_when_the_change_is_proven(tmp_path: Path) -> None:
    flow, outs = flow_of([[1], [3], [5], [7], [9], [11], [13], [15], [17], [19]], 5)
    local = Local(flow, tmp_path, 1, ahead=False)
    local.step()
    local.propose(SHORTER, md.Replace("m", md.map_batches(also_same)))
    aside: set[str] = set()
    for _ in range(4):
        local.step()
        aside |= {s.name for table in local.manifest.tables.values() for s in table.segments if s.groups and s.last_end <= table.floor}
    assert aside, "the windows before need what the shorter ones do not"
    local.run(flush=True)
    assert "unproven" not in local.manifest.plan
    assert not aside & local.manifest.segment_names()
    Local(flow, tmp_path, 1)
    assert not lost(local)
    assert max(row[-1] for frame in outs["windows"].epochs().values() for row in frame.rows()) == 1


WINDOW_CHANGES: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "shorter windows": (md.sliding("8s", "2s"), {}, [SHORTER]),
    "less lateness": (md.tumbling("8s"), {"lateness": "20s"}, [md.Replace("w", md.aggregate(md.count().alias("n"), lateness="0s"))]),
    "closed in place of updates": (
        md.tumbling("8s"),
        {"emit": "update"},
        [md.Replace("w", md.aggregate(md.count().alias("n"), emit="closed"))],
    ),
    "less grace": (md.tumbling("8s"), {}, [GRACE]),
    "another operator": (md.session("3s"), {}, []),
}


@pytest.mark.many
@pytest.mark.parametrize(
    ("change", "flushed_at", "restarts"),
    [
        *((change, 2, True) for change in WINDOW_CHANGES),
        ("shorter windows", 2, False),
        ("less grace", 0, False),
        ("less grace", 0, True),
        ("another operator", 0, False),
    ],
)
def test_a_flush_before_or_on_probation_counts_for_the_plan_before_by_its_own_rules(
    tmp_path: Path, change: str, flushed_at: int, restarts: bool
) -> None:
    """What the change has published meanwhile stays: what comes out after it is taken back, and which rows are late, is compared."""
    window, how, changes = WINDOW_CHANGES[change]
    times, changed_at, fails_at = [[1], [9, 25], [9, 26], [12], [27, 13, 3], [36, 20, 31]], 1, 3
    found = []
    for is_changed in (False, True):
        flow, out, late = md.Flow("f"), md.memory(), md.memory()
        rows = flow.source("a", Script(COLUMNS, epochs(times))).watermark("ts", grace="100s", name="time")
        windows = rows.key_by("v").window(window).aggregate(md.count().alias("n"), name="w", **how)
        windows.sink("out", out)
        windows.late().sink("late", late)
        other = tuple(((0, ((1, 1, 0),) if number == fails_at else ()),) for number in range(len(times)))
        flow.source("b", Script(COLUMNS, other)).map_batches(same, name="m").sink("other", md.memory())
        local, before = Local(flow, tmp_path / str(is_changed), 1, ahead=False), 0
        for number in range(len(times)):
            if is_changed and number == changed_at:
                local.propose(*changes, BAD)
            if number == fails_at:
                before = local.manifest.epoch
            assert local.step()
            if restarts and number > changed_at:
                local = Local(flow, tmp_path / str(is_changed), 2, ahead=False)
            if number == flushed_at:
                for _ in local.flush():
                    pass
        floors = local.manifest.flushed
        local.run(flush=True)
        after = [[row for e, frame in of.epochs().items() if e > before for row in sorted(frame.rows())] for of in (out, late)]
        found.append((floors, *after))
    assert found[0] == found[1]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_change_that_has_refused_a_row_as_late_is_not_taken_back(tmp_path: Path, restarts: bool) -> None:
    """The plan before would have taken the row: gone back to, it would be without it for good."""
    flow, out, letters = md.Flow("f"), md.memory(), md.memory()
    rows = flow.source("a", Script(COLUMNS, epochs([[1], [2], [12]]))).watermark("ts", grace="100s", name="time")
    windows = rows.key_by("v").window(md.tumbling("8s")).aggregate(md.count().alias("n"), emit="update", name="w")
    windows.sink("out", out)
    windows.late().sink("late", letters)
    other = tuple(((0, ((1, 1, 0),) if number == 2 else ()),) for number in range(3))
    flow.source("b", Script(COLUMNS, other)).map_batches(same, name="m").sink("other", md.memory())
    local = Local(flow, tmp_path, 1, ahead=False)
    local.step()
    local.propose(md.Replace("w", md.aggregate(md.count().alias("n"), emit="closed")), BAD)
    for _ in local.flush():  # what is open is closed under the change
        pass
    assert "unproven" in local.manifest.plan
    if restarts:
        local = Local(flow, tmp_path, 1, ahead=False)
    local.step()
    assert letters.frame().height == 1
    assert "unproven" not in local.manifest.plan
    local.run()
    assert local.manifest.plan["version"] == 2, "it is in force for good"
    assert local.manifest.totals["dead_letters"] == 1


def test_what_is_over_as_soon_as_it_comes_is_set_aside_epoch_by_epoch(tmp_path: Path) -> None:
    """The right row is at least five seconds older: behind the mark, so that the left one is dropped in the epoch in which it comes."""
    lefts, rights = [[20], [40], [40], [40], [], [], []], [[20], [40], [40], [40], [], [33], [33]]
    found = []
    for is_changed in (False, True):
        flow, out = md.Flow("f"), md.memory()
        left, right = (
            flow.source(name, Script(COLUMNS, tuple(((0, tuple((1, n, ts * SECOND) for ts in of)),) for n, of in enumerate(times))))
            .watermark("ts", grace="30s", name=f"{name}_time")
            for name, times in (("a", lefts), ("b", rights))
        )  # fmt: skip
        left.join(right.select("k", "ts", pl.col("v").alias("w")), on="k", within=("-10s", "-5s"), name="j").sink("out", out)
        other = tuple(((0, ((1, 1, 0),) if number == 4 else ()),) for number in range(len(lefts)))
        flow.source("c", Script(COLUMNS, other)).map_batches(same, name="m").sink("other", md.memory())
        local = Local(flow, tmp_path / str(is_changed), 1, ahead=False)
        local.step()
        if is_changed:
            local.propose(BAD, *(md.Replace(f"{name}_time", md.watermark("ts", grace="0s")) for name in ("a", "b")))
        local.run()
        assert "unproven" not in local.manifest.plan
        found.append({epoch: sorted(frame.select("v", "w").rows()) for epoch, frame in out.epochs().items() if frame.height})
    assert found[0] == found[1] == {6: [(1, 5), (2, 5), (3, 5)], 7: [(1, 6), (2, 6), (3, 6)]}


ANOTHER_TIME = (md.Remove("time"), md.Insert("other_time", md.watermark("v", grace="100s"), after="a"))


@pytest.mark.parametrize("change", ["another key", "another time"])
@pytest.mark.parametrize("taken_back", [False, True])
def test_what_a_flush_has_closed_is_nothing_to_an_operator_that_begins_anew(tmp_path: Path, change: str, taken_back: bool) -> None:
    flow, out, late = md.Flow("f"), md.memory(), md.memory()
    columns = {"k": pl.Int64(), "v": pl.Datetime("us"), "ts": pl.Datetime("us")}
    seconds = [[(1, 1, 1000)], [], [(1, 3, 1003)], [(2, 4, 1004)]]
    script = tuple(((0, tuple((k, v * SECOND, ts * SECOND) for k, v, ts in of)),) for of in seconds)
    rows = flow.source("a", Script(columns, script)).watermark("ts", grace="100s", name="time")
    windows = rows.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w")
    windows.sink("out", out)
    windows.late().sink("late", late)
    other = tuple(((0, ((1, 0, 0),) if taken_back and number == 2 else ()),) for number in range(len(script)))
    flow.source("b", Script(columns, other)).map_batches(same, name="m").sink("other", md.memory())
    local = Local(flow, tmp_path, 1, ahead=False)
    local.step()
    assert list(local.flush()) == [True]
    floor = local.manifest.flushed
    changes = [md.Replace("w", md.aggregate(md.count().alias("n"), by="v"))] if change == "another key" else ANOTHER_TIME
    trial = local.propose(*changes, BAD, drop={"w"})
    local.step()
    assert trial.done.result(0)
    assert not local.manifest.flushed
    local.step()
    assert local.manifest.flushed == (floor if taken_back else {})
    local.run(flush=True)
    assert sum(frame.height for frame in late.epochs().values()) == (2 if taken_back else 0)
    assert sum(frame.get_column("n").sum() for frame in out.epochs().values()) == (1 if taken_back else 3)


@pytest.mark.parametrize("operator", ["w", "g"])
def test_a_change_that_has_stored_rows_under_another_key_is_not_taken_back(tmp_path: Path, operator: str) -> None:
    """There was no state to drop, so the change could be taken back, until it had some of its own that the plan before cannot read."""
    flow, outs = md.Flow("f"), {"w": md.memory(), "g": md.memory()}
    columns = {"k": pl.Int64(), "v": pl.String(), "ts": pl.Datetime("us")}
    script = tuple(((0, ((1, "ab"[number % 2], SECOND),)),) for number in range(4))
    rows = flow.source("a", Script(columns, script)).watermark("ts", grace="100s", name="time")
    rows.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w").sink("windows", outs["w"])
    rows.key_by("k").aggregate(md.count().alias("n"), name="g").sink("totals", outs["g"])
    other = tuple(((0, ((1, "a", 0),) if number == 2 else ()),) for number in range(4))
    flow.source("b", Script(columns, other)).map_batches(same, name="m").sink("other", md.memory())
    local = Local(flow, tmp_path, 1, ahead=False)
    local.propose(md.Replace(operator, md.aggregate(md.count().alias("n"), by="v")), BAD, drop={operator})
    local.run(flush=True)
    newest = {row[0]: row[-1] for frame in outs[operator].epochs().values() for row in frame.rows()}
    assert newest == {"a": 2, "b": 2}
    assert local.manifest.totals["dead_letters"] == 1


def test_a_join_as_of_a_time_never_gives_a_row_of_the_future_after_a_change_of_its_marks(tmp_path: Path) -> None:
    """A newer row takes the place of an older one when the mark passes it. A change that has done so is not taken back."""
    lefts = [[(1, 20)], [(2, 32)], [(2, 32)], [(1, 44)], [(2, 50)], [(2, 50)], [], [(1, 42)], [(2, 90)], [(2, 91)]]
    rights = [[(1, 20)], [(2, 32)], [(2, 32)], [(1, 44)], [(2, 50)], [(2, 50)], [], [], [(2, 90)], [(2, 91)]]
    flow, out = md.Flow("f"), md.memory()
    left, right = (
        flow.source(name, Script(COLUMNS, tuple(((0, tuple((k, ts, ts * SECOND) for k, ts in of)),) for of in rows)))
        .watermark("ts", grace="10s", name=f"{name}_time")
        for name, rows in (("a", lefts), ("b", rights))
    )  # fmt: skip
    left.join_latest(right.select("k", "ts", pl.col("v").alias("w")), on="k", as_of=True, name="j").sink("out", out)
    other = tuple(((0, ((1, 1, 0),) if number == 6 else ()),) for number in range(len(lefts)))
    flow.source("c", Script(COLUMNS, other)).map_batches(same, name="m").sink("other", md.memory())
    local = Local(flow, tmp_path, 1, ahead=False)
    for number in range(len(lefts)):
        if number == 3:
            local.propose(BAD, *(md.Replace(f"{name}_time", md.watermark("ts", grace="0s")) for name in ("a", "b")))
        local.step()
    local.run(flush=True)
    pairs = [pair for frame in out.epochs().values() for pair in frame.select("v", "w").rows()]
    assert pairs
    assert [(v, w) for v, w in pairs if w > v] == []


@pytest.mark.many
def test_a_change_on_probation_is_taken_back_by_replicas_as_by_one(tmp_path: Path) -> None:
    """A run alone has made it, and replicas go on from there: each sets aside what the others would need, too."""
    times = [[3 * number, 3 * number + 1] for number in range(9)]
    found = []
    for changed in (False, True):
        flow, outs = flow_of(times, 6)
        local = Local(flow, tmp_path / f"{changed}", ahead=False)
        local.step()
        if changed:
            local.propose(SHORTER, BAD)
        local.step()
        a, b = (Local(flow, tmp_path / f"{changed}", replica=name, ahead=False) for name in "ab")
        while a.step() and b.step():
            assert not lost(a) | lost(b)
        b.step()
        assert a.loop.trials.quiet
        assert b.loop.trials.quiet
        found.append((output(outs, 8), facts(b)))
    assert found[0] == found[1]


def test_a_change_that_a_sibling_has_proven_is_on_probation_nowhere(tmp_path: Path) -> None:
    flow, _ = flow_of([[3 * number, 3 * number + 1] for number in range(9)], 4)
    local = Local(flow, tmp_path, ahead=False)
    local.step()
    local.propose(SHORTER, md.Replace("m", md.map_batches(also_same)))
    local.step()
    a, b = (Local(flow, tmp_path, replica=name, ahead=False) for name in "ab")
    for _ in range(4):
        a.step()
    assert "unproven" not in a.manifest.plan
    b.step()
    assert "unproven" not in b.manifest.plan
    assert b.loop.trials.quiet


CLOSED = md.Replace("w", md.aggregate(md.count().alias("n"), emit="closed"))
OTHER_WINDOWS = md.Replace("w", md.aggregate(md.count().alias("n"), window=md.tumbling("4s"), emit="update"))
CHANGES_ON_PROBATION: dict[str, list[list[Any]]] = {
    "closed": [[CLOSED, BAD]],
    "other windows": [[OTHER_WINDOWS, BAD]],
    "closed, and more on top of it": [[CLOSED, BAD], [WORSE]],
    "closed on top of another": [[BAD], [CLOSED]],
    "closed on top of other windows": [[OTHER_WINDOWS, BAD], [CLOSED]],
}


@pytest.mark.many
@pytest.mark.parametrize("goes_on", ["the run", "a restart", "two replicas"])
@pytest.mark.parametrize("changes", CHANGES_ON_PROBATION)
def test_windows_that_a_change_did_not_give_out_are_owed_by_the_plan_before(tmp_path: Path, changes: str, goes_on: str) -> None:
    """Rows came to a window while a change was on probation under which it was not given out, and none came to it afterwards."""
    times: list[list[int]] = [[0, 1], [2], [3], [], [20], [40], [60]]
    found = []
    for asked in ([], CHANGES_ON_PROBATION[changes]):
        folder, fails_at = tmp_path / str(len(asked)), 3
        flow, out = md.Flow("f"), md.memory()
        rows = flow.source("a", Script(COLUMNS, epochs(times))).watermark("ts", grace="0s", name="time")
        windows = rows.key_by("v").window(md.sliding("8s", "4s")).aggregate(md.count().alias("n"), emit="update", name="w")
        windows.sink("out", out)
        other = tuple(((0, ((1, 1, 0),) if number == fails_at else ()),) for number in range(len(times)))
        flow.source("b", Script(COLUMNS, other)).map_batches(same, name="m").sink("other", md.memory())
        local, siblings = Local(flow, folder, 1, ahead=False), []
        for number in range(len(times)):
            if number in (1, 2) and len(asked) >= number:
                local.propose(*asked[number - 1])
            if number == fails_at and goes_on == "two replicas":
                siblings = [Local(flow, folder, replica=name, ahead=False) for name in "ab"]
                local = siblings[0]
            elif number > 2 and goes_on == "a restart":
                local = Local(flow, folder, 2, ahead=False)
            for one in siblings or [local]:
                one.step()
            assert ("unproven" in local.manifest.plan) == (bool(asked) and 1 <= number < fails_at)
        assert local.manifest.plan["version"] == 1
        found.append({row[:3]: row[3] for _, frame in sorted(out.epochs().items()) for row in sorted(frame.rows())})
    without, taken_back = found
    assert {window: taken_back[window] for window in without} == without


@pytest.mark.many
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("then", [None, "1s"])
def test_what_the_marks_of_a_change_had_not_passed_closes_when_it_is_taken_back(tmp_path: Path, restarts: bool, then: str | None) -> None:
    """Its watermark has more grace, so that it closes less than the plan before would have closed. Each window comes out once.

    Another change on top of it has less again, and is taken back with it: what that one has closed does not come again.
    """
    times = [[0, 1, 2], [3, 4], [11], [20], [31], [32], [50], [80]]
    found = []
    for is_changed in (False, True):
        flow, outs = flow_of(times, 5)
        local = Local(flow, tmp_path / str(is_changed), 1, ahead=False)
        for number in range(len(times)):
            if is_changed and number == 1:
                local.propose(md.Replace("time", md.watermark("ts", grace="12s")), BAD)
            if is_changed and number == 2 and then is not None:
                local.propose(md.Replace("time", md.watermark("ts", grace=then)))
            if restarts and number > 2:
                local = Local(flow, tmp_path / str(is_changed), 2, ahead=False)
            local.step()
            assert ("unproven" in local.manifest.plan) == (is_changed and 1 <= number < 5)
        local.run(flush=True)
        found.append({name: sorted(row for rows in output(outs, 0)[name].values() for row in rows) for name in ("windows", "sessions")})
    assert found[0] == found[1]


def test_a_table_that_was_empty_when_a_change_flushed_can_be_read_when_that_is_taken_back(tmp_path: Path) -> None:
    flow, count = md.Flow("f"), md.count().alias("n")
    rows = flow.source("a", Script(COLUMNS, tuple(((0, ((1, v, ts * SECOND),)),) for v, ts in ((1, 1), (0, 30), (0, 31), (0, 32)))))
    rows = rows.watermark("ts", grace="0s", name="time")
    some = rows.filter("v > 0").key_by("k").window(md.tumbling("10s"))
    some.aggregate(count, name="w", emit="update").sink("some", md.memory())
    rows.key_by("k").window(md.tumbling("10s")).aggregate(count, name="all").sink("whole", md.memory())
    late = tuple(((0, ((1, 1, 0),) if number == 3 else ()),) for number in range(4))
    flow.source("b", Script(COLUMNS, late)).map_batches(same, name="m").sink("other", md.memory())
    local = Local(flow, tmp_path, 1, ahead=False)
    for _ in range(3):
        local.step()
    assert "w" not in local.stored
    local.propose(md.Replace("w", md.aggregate(count, window=md.tumbling("10s"), emit="closed")), BAD)
    assert any(local.flush())
    assert "unproven" in local.manifest.plan
    local.step()
    assert "unproven" not in local.manifest.plan
    assert md.read_state(tmp_path, "w").num_rows == 0


def test_what_a_sibling_merges_while_a_change_is_taken_back_is_not_lost(tmp_path: Path) -> None:
    times = [[number] for number in range(14)]
    flow, _ = flow_of(times, 6, grace="60s")
    with constants(FEWEST=(compaction_module, 1000)):
        local = Local(flow, tmp_path, 1, ahead=False)
        local.step()
        local.propose(SHORTER, BAD)
        local.step()
        a, b = (Local(flow, tmp_path, 1, replica=name, ahead=False) for name in "ab")
        while a.manifest.epoch < 6:
            a.step()
        attempt, merged = a.loop.attempts.run, []

        def meanwhile(*args: Any, **options: Any) -> Any:
            outcome = attempt(*args, **options)
            b.loop.siblings.keep_up()
            with constants(FEWEST=(compaction_module, 2)):
                b.loop.housekeeping.compactor.consider(b.manifest, b.loop.routing, dict.fromkeys(b.loop.routing, 1))
            b.loop.housekeeping.do()
            merged.append(b.manifest.position)
            return outcome

        with mock.patch.object(a.loop.attempts, "run", meanwhile):
            a.step()
        assert merged
        assert "unproven" not in a.manifest.plan, "it was taken back"
        while a.step() and b.step():
            assert not lost(a) | lost(b)
        assert a.manifest.epoch == len(times)


def parting_flow(operator: str, times: list[list[int]]) -> md.Flow:
    flow = md.Flow("f")
    rows = flow.source("a", Script(COLUMNS, epochs(times))).watermark("ts", grace="100s", name="time")
    more = flow.source("c", Script(COLUMNS, epochs(times))).watermark("ts", grace="100s", name="more_time")
    more.sink("more", md.memory())
    if operator == "sessions":
        found = rows.key_by("v").window(md.session("4s")).aggregate(md.count().alias("n"), name="s")
    elif operator == "best":
        found = rows.key_by("v").window(md.sliding("8s", "2s")).top(2, by="ts", name="s")
    else:
        window = {"in sessions": md.session("4s"), "in sliding": md.sliding("8s", "2s"), "in cumulating": md.cumulating("8s", "2s")}
        how = "anti" if operator == "in cumulating" else "full"
        found = rows.window(window[operator]).join(more, on="v", how=how, name="s")
    found.sink("out", md.memory())
    other = tuple(((0, ((1, 1, 0),) if number == len(times) - 1 else ()),) for number in range(len(times)))
    flow.source("b", Script(COLUMNS, other)).map_batches(same, name="m").sink("other", md.memory())
    return flow


@pytest.mark.many
@pytest.mark.parametrize("operator", ["sessions", "best", "in sessions", "in sliding", "in cumulating"])
@pytest.mark.parametrize("behind", [False, True])
def test_a_change_that_has_parted_rows_from_what_had_closed_is_not_taken_back(tmp_path: Path, operator: str, behind: bool) -> None:
    """None is late by its marks, but they were not counted in a session, or a window, that the plan before has open."""
    times = [[18], [22], [22], [19 if behind else 22], [23]]
    local = Local(parting_flow(operator, times), tmp_path, 1, ahead=False)
    local.propose(BAD, *(md.Replace(name, md.watermark("ts", grace="0s")) for name in ("time", "more_time")))
    for _ in range(4):
        local.step()
        assert local.manifest.totals.get("late_rows", 0) == 0
    assert ("unproven" in local.manifest.plan) == (not behind)
    local.run()
    assert local.manifest.plan["version"] == (2 if behind else 1)
    assert local.manifest.totals.get("dead_letters", 0) == int(behind)
