"""Tables of which nothing is left after a merge: they can still be read, and changed, since their columns are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from tests.local import Local, Script, constants

import meander as md
from meander.state import compaction as compaction_module

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
FEW = {"FEWEST": (compaction_module, 2)}


def epochs(*rows: tuple[int, int, int]) -> tuple[Any, ...]:
    """One row per epoch, with its time in seconds."""
    return tuple(((0, ((k, v, ts * SECOND),)),) for k, v, ts in rows)


class Toggle(md.Processor):
    output: ClassVar = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n = 0 if state.n else rows[0].v
        yield (state.n,)


class Reminder(md.Processor):
    output: ClassVar = {"n": "int64"}

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        if key == 1:
            ctx.set_timer("1s")
        return []

    def on_timer(self, key: Any, timer: Any, state: Any, ctx: Any) -> Any:
        return []


class Wider(Toggle):
    m = md.value("int64", default=0)


def toggled(folder: Path, rows: int) -> tuple[Local, Any]:
    flow, out = md.Flow("f"), md.memory()
    flow.source("a", Script(COLUMNS, epochs(*((1, 7, ts) for ts in range(rows))))).key_by("k").process(Toggle, name="p").sink("out", out)
    return Local(flow, folder, 1, ahead=False), out


def test_a_session_that_has_moved_on_is_read_once(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    script = Script(COLUMNS, epochs((2, 1, 5), (1, 1, 11), (1, 1, 15), (1, 1, 22), (1, 1, 23), (1, 1, 24), (1, 1, 25)))
    stream = flow.source("a", script).watermark("ts", grace="5s")
    stream.key_by("k").window(md.session("40s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    with constants(**FEW):
        local, read = Local(flow, tmp_path, 1, ahead=False), pl.DataFrame()
        while local.step():
            read = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "w")))
            assert read.select("k").is_unique().all()
    assert sorted(read.select("k", "n").rows()) == [(1, 6), (2, 1)]


def test_the_state_of_an_operator_that_has_forgotten_everything_is_read_as_no_rows(tmp_path: Path) -> None:
    with constants(**FEW):
        local, _ = toggled(tmp_path, 2)
        local.run()
    assert local.manifest.tables["p"].rows == 0
    read = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "p")))
    assert (read.columns, read.height) == (["k", "n"], 0)


def test_a_backfill_of_a_table_merged_to_nothing_is_in_force_and_the_table_goes_on(tmp_path: Path) -> None:
    with constants(**FEW):
        local, out = toggled(tmp_path, 4)
        local.step()
        local.step()
        local.loop.housekeeping.do()  # the merge that the second epoch made due
        assert local.manifest.tables["p"].rows == 0
        trial = local.propose(md.Replace("p", md.process(Wider)), backfill={"p": {"m": 5}})
        local.step()
        assert trial.done.result().version == 2
        local.run()
    assert [frame.rows() for frame in out.epochs().values()] == [[(1, 7)], [(1, 0)], [(1, 7)], [(1, 0)]]


def test_a_table_goes_on_after_it_was_merged_to_nothing_and_after_a_restart(tmp_path: Path) -> None:
    with constants(**FEW):
        local, _ = toggled(tmp_path, 2)
        local.run()
        again, rest = toggled(tmp_path, 5)
        again.run()
    assert [frame.rows() for frame in rest.epochs().values()][-3:] == [[(1, 7)], [(1, 0)], [(1, 7)]]
    assert all(segment.groups for segment in again.manifest.tables["p"].segments)


def test_what_an_emptied_table_has_kept_for_its_columns_goes_when_it_has_rows_again(tmp_path: Path) -> None:
    """Each timer fires in an epoch without input, behind which the mark stands still: in the next epoch no floor moves."""
    flow, times = md.Flow("f"), range(0, 200, 10)
    script = tuple(((0, ((1, 0, ts * SECOND), (2, 0, (ts + 5) * SECOND))),) for ts in times)
    flow.source("a", Script(COLUMNS, script)).watermark("ts").key_by("k").process(Reminder, name="p").sink("out", md.memory())
    local = Local(flow, tmp_path, 1, ahead=False)
    for _ in times:
        local.step()
        assert sum(local.flush()) == 0
        assert "p.event" not in local.stored
    assert local.manifest.epoch == 2 * len(times)
    assert len(local.store.list("segments/p.event/")) <= 4, "those of the epochs that are retained"
