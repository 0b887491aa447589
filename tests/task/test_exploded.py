"""Lists taken apart in a flow: the same table, however the input is cut into epochs, at any parallelism. Columns renamed, and the time."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "tags": pl.List(pl.String)}


def drawn(seed: int) -> list[tuple[Any, ...]]:
    dice = random.Random(seed)
    rows: list[tuple[Any, ...]] = []
    for _ in range(dice.randrange(5, 40)):
        tags = None if dice.random() < 0.1 else [dice.choice("abcd") for _ in range(dice.choice((0, 1, 1, 2, 3)))]
        rows.append((dice.randrange(4), dice.randrange(6), tags))
    return rows


def cut(rows: list[tuple[Any, ...]], dice: random.Random) -> tuple[Any, ...]:
    """The rows in epochs of one or two splits."""
    epochs, at = [], 0
    while at < len(rows):
        size = dice.randrange(1, 8)
        piece, at = rows[at : at + size], at + size
        middle = dice.randrange(len(piece) + 1)
        epochs.append(tuple((0, tuple(part)) for part in (piece[:middle], piece[middle:]) if part))
    return tuple(epochs)


@pytest.mark.many
@pytest.mark.parametrize("seed", range(25))
def test_what_follows_an_explode_is_what_it_would_be_over_all_input(seed: int, tmp_path: Path) -> None:
    dice, rows = random.Random(-1 - seed), drawn(seed)
    flow = md.Flow("f")
    source = flow.source("in", Script(COLUMNS, cut(rows, dice)))
    # Behind the source, and behind an operator with state: there rows of several key groups come together.
    source.explode("tags").rename({"tags": "tag"}).key_by("tag").aggregate(md.count().alias("n"), md.sum("v").alias("s"), name="tags").sink(
        "tags_out", md.discard()
    )
    listed = source.drop("tags").key_by("k").aggregate(md.collect("v").alias("vs"), name="listed")
    listed.explode("vs").key_by("vs").aggregate(md.count().alias("n"), name="values").sink("values_out", md.discard())
    folder = tmp_path / "store"
    Local(flow, folder, dice.choice((1, 2, 3)), small=dice.random() < 0.5).run()
    by_tag = Counter(tag for _, _, tags in rows for tag in tags or ())
    sums = Counter[str]()
    for _, v, tags in rows:
        for tag in tags or ():
            sums[tag] += v
    found = {row["tag"]: (row["n"], row["s"]) for row in md.read_state(folder, "tags").to_pylist()}
    assert found == {tag: (n, sums[tag]) for tag, n in by_tag.items()}
    values = {row["vs"]: row["n"] for row in md.read_state(folder, "values").to_pylist()}
    assert values == Counter(v for _, v, _ in rows)


TIMES = {"k": pl.Int64(), "ts": pl.Datetime("us"), "other": pl.Datetime("us")}
SECOND = 1_000_000
MOMENTS = [(1, at * SECOND, (900 - at) * SECOND) for at in (0, 3, 12, 25, 90, 7)]


def seconds(out: Any) -> list[tuple[int, int]]:
    rows = pl.DataFrame(pl.from_arrow(out.table()))
    return sorted(rows.select(pl.col("window_start").dt.epoch("s"), "n").rows())


@pytest.mark.parametrize("names", [{"ts": "at"}, {"ts": "other", "other": "ts"}, {"other": "elsewhere"}])
def test_the_time_of_rows_follows_its_column_to_a_new_name(tmp_path: Path, names: dict[str, str]) -> None:
    """Also where another column has its name then."""
    found = []
    for number, renamed in enumerate((False, True)):
        flow, out, late = md.Flow("f"), md.memory(), md.memory()
        rows = flow.source("in", Script(TIMES, tuple(((0, (one,)),) for one in MOMENTS))).watermark("ts", name="time")
        cut = (rows.rename(names, name="renamed") if renamed else rows).window(md.tumbling("5s")).aggregate(md.count().alias("n"), name="w")
        cut.sink("out", out)
        cut.late().select("k").sink("late_out", late)
        Local(flow, tmp_path / str(number), 2).run(flush=True)
        found.append((seconds(out), late.table().num_rows))
    assert found[0] == found[1] == ([(0, 2), (10, 1), (25, 1), (90, 1)], 1)


def test_a_window_does_not_go_on_by_another_column_of_the_name(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    rows = flow.source("in", Script(TIMES, tuple(((0, (one,)),) for one in MOMENTS))).watermark("ts", name="time")
    rows.window(md.tumbling("5s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    local = Local(flow, tmp_path, 2, ahead=False)
    assert local.step()
    with pytest.raises(md.FlowError, match="its time was ts of time and would be other of time"):
        local.propose(md.Insert("swap", md.select("k", "ts AS other", "other AS ts"), after="time")).done.result(0)
