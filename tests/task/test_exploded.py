"""Lists taken apart in a flow: the same table, however the input is cut into epochs, at any parallelism."""

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
