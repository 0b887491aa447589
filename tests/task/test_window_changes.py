"""Windows and sessions that come again say what they replace: what follows on them is what it would be over all input at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.epochs.test_time_crashes import PLACES, Killed, kill_at
from tests.local import Local, Script
from tests.task.test_changes import check
from tests.task.window_changing import COLUMNS, SECOND, Drawn, seconds

import meander as md

Rows = tuple[tuple[int, int], ...]
"""Key and second."""


@pytest.mark.many
@pytest.mark.parametrize("seed", range(60))
def test_any_flow_over_windows_that_come_again_is_its_query_over_all_input(tmp_path: Path, seed: int) -> None:
    drawn = Drawn(seed)
    log, out, epochs = drawn.run(tmp_path)
    check(drawn, log, out, epochs)


def run(folder: Path, epochs: tuple[Rows, ...], window: Any, emit: str, lateness: int, told: bool = True) -> list[list[tuple[Any, ...]]]:
    """What each epoch says of windows: key, begin, end, number of rows and, where it is asked for, the sign."""
    flow, out = md.Flow("f"), md.memory()
    script = Script(COLUMNS, tuple(((0, tuple((k, 1, 0, ts * SECOND) for k, ts in rows)),) for rows in epochs))
    windows = flow.source("rows", script).watermark("ts").key_by("k").window(window)
    stream = windows.aggregate(md.count().alias("n"), emit=emit, lateness=lateness, name="w")
    (stream.changes() if told else stream).with_columns(seconds("window_start"), seconds("window_end")).sink("out", out)
    local = Local(flow, folder, 2)
    local.run()
    by_epoch = out.epochs()
    return [sorted(by_epoch[epoch].rows()) if epoch in by_epoch else [] for epoch in range(1, local.manifest.epoch + 1)]


def test_a_window_takes_its_former_row_back_in_the_epoch_in_which_it_comes_again(tmp_path: Path) -> None:
    found = run(tmp_path, (((1, 3), (1, 4)), ((1, 5), (2, 5))), md.tumbling("10s"), "update", 0)
    assert found == [[(1, 0, 10, 2, 1)], [(1, 0, 10, 2, -1), (1, 0, 10, 3, 1), (2, 0, 10, 1, 1)]]


def test_sliding_windows_take_back_what_all_of_their_pieces_came_to(tmp_path: Path) -> None:
    found = run(tmp_path, (((1, 12),), ((1, 18),)), md.sliding("10s", "5s"), "update", 0)
    assert found == [[(1, 5, 15, 1, 1), (1, 10, 20, 1, 1)], [(1, 10, 20, 1, -1), (1, 10, 20, 2, 1), (1, 15, 25, 1, 1)]]


def test_a_window_that_has_closed_is_taken_back_where_a_late_row_changes_it(tmp_path: Path) -> None:
    found = run(tmp_path, (((1, 3),), ((1, 15),), (), ((1, 4),)), md.tumbling("10s"), "closed", 10)
    assert [rows for rows in found if rows] == [[(1, 0, 10, 1, 1)], [(1, 0, 10, 1, -1), (1, 0, 10, 2, 1)]]


def test_a_session_takes_back_all_that_have_become_part_of_it(tmp_path: Path) -> None:
    found = run(tmp_path, (((1, 3), (1, 9), (2, 9)), ((1, 6),)), md.session("3s"), "update", 9)
    assert found == [
        [(1, 3, 6, 1, 1), (1, 9, 12, 1, 1), (2, 9, 12, 1, 1)],
        [(1, 3, 6, 1, -1), (1, 3, 12, 3, 1), (1, 9, 12, 1, -1)],
    ]


def test_a_session_that_had_closed_and_goes_on_is_gone_until_it_closes(tmp_path: Path) -> None:
    """And one that was open has not come, so that it is not gone either."""
    epochs: tuple[Rows, ...] = (((1, 3), (2, 10), (1, 8)), (), ((1, 5), (2, 9)), ((2, 20),), ())
    found = run(tmp_path, epochs, md.session("3s"), "closed", 20)
    assert [rows for rows in found if rows] == [[(1, 3, 6, 1, 1)], [(1, 3, 6, 1, -1)], [(1, 3, 11, 3, 1), (2, 9, 13, 2, 1)]]


def test_what_is_as_it_was_is_not_told(tmp_path: Path) -> None:
    flow, log = md.Flow("f"), md.memory()
    script = Script(COLUMNS, tuple(((0, ((1, v, 0, 3 * SECOND),)),) for v in (5, 2, 5)))
    stream = flow.source("rows", script).watermark("ts").key_by("k")
    for name, window in (("w", md.tumbling("10s")), ("s", md.session("3s"))):
        largest = stream.window(window).aggregate(md.max("v").alias("most"), emit="update", name=name)
        largest.select("most", name=f"{name}_most").changes().sink(f"{name}_out", log if name == "w" else md.discard())
    Local(flow, tmp_path, 2).run()
    assert log.frame().rows() == [(5, 1)]


@pytest.mark.many
@pytest.mark.parametrize("window", [md.tumbling("10s"), md.sliding("10s", "5s"), md.session("3s")], ids=str)
@pytest.mark.parametrize(("emit", "lateness"), [("update", 0), ("update", 20), ("closed", 20)])
def test_a_sink_gets_the_same_rows_whether_somebody_is_told_what_is_gone_or_not(
    tmp_path: Path, window: Any, emit: str, lateness: int
) -> None:
    epochs: tuple[Rows, ...] = (((1, 3), (1, 9), (2, 9)), ((1, 6), (2, 11)), ((1, 14), (1, 17)), ((2, 13), (1, 12)), ())
    plain = run(tmp_path / "plain", epochs, window, emit, lateness, told=False)
    told = run(tmp_path / "told", epochs, window, emit, lateness)
    assert [[row[:-1] for row in rows if row[-1] > 0] for rows in told] == plain


@pytest.mark.many
@pytest.mark.parametrize("seed", range(8))
def test_what_is_told_does_not_depend_on_when_the_driver_dies(tmp_path: Path, seed: int) -> None:
    def logs(folder: Path, deaths: list[str | None]) -> list[Any]:
        drawn, flow, log = Drawn(seed), md.Flow("drawn"), md.memory()
        stream = drawn.stream(flow.source("rows", drawn.script()))
        stream.changes(name="log").sink("log_out", log)
        local, left = Local(flow, folder, ahead=False), list(deaths)
        for _ in range(300):
            place = left.pop(0) if left else None
            try:
                if place is None:
                    if not local.step(flush=local.loop.finished()) and not left:
                        break
                else:
                    with kill_at(local, place):
                        local.step(flush=local.loop.finished())
            except Killed:
                local = Local(flow, folder, 1 + len(left) % 3, ahead=False)
        return sorted(log.frame().rows(), key=repr)

    deaths = [PLACES[number // 2 % 3] if number % 2 else None for number in range(seed, seed + 12)]
    assert logs(tmp_path / "died", deaths) == logs(tmp_path / "undisturbed", [])


def test_windows_behind_a_change_of_their_reader_begin_anew_together(tmp_path: Path) -> None:
    """Who comes to be told later has not been given what is stored: it would be told of rows that it never had."""
    flow = md.Flow("f")
    script = Script(COLUMNS, tuple(((0, ((1, 1, 0, ts * SECOND),)),) for ts in (1, 2, 3, 4)))
    windows = flow.source("rows", script).watermark("ts").key_by("k").window(md.tumbling("10s"))
    windows.aggregate(md.count().alias("n"), emit="update", name="w").sink("out", md.discard())
    local = Local(flow, tmp_path, 2)
    local.step()
    counts = md.aggregate(md.count().alias("c"), by="n")
    inserted = [md.Insert("counts", counts, after="w", before=[]), md.Insert("counts_out", md.discard(), after="counts")]
    with pytest.raises(md.FlowError, match=r"must have been given all removed rows.*give drop_state=\['w'\]"):
        local.propose(*inserted)
    local.propose(*inserted, drop=("w",))
    local.run()
    assert pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "counts"))).rows() == [(3, 1)]
