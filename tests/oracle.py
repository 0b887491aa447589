"""An independent model of what a flow must have published and stored: plain dictionaries over the decisions in the log.

It reads the log's entries as JSON and the input files with Polars; of the product only the store takes part. Values are multiples of a
power of two, so that sums are exact in any order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from meander.state.stores.contract import open_store


def decisions(store: Path | str) -> list[dict[str, Any]]:
    """Every epoch entry of the log, in order. The runs under test retain all of them."""
    opened = open_store(store)
    entries = [json.loads(opened.get(name) or b"") for name in opened.list("log/")]
    epochs = sorted((e for e in entries if e["kind"] == "epoch"), key=lambda e: e["epoch"])
    assert [e["epoch"] for e in epochs] == list(range(1, len(epochs) + 1))
    return epochs


def check_input_taken_once(store: Path | str, folder: Path) -> None:
    """Every input file is in exactly one decision (files here are one split each)."""
    taken = [payload["path"] for entry in decisions(store) for _, payload in entry["splits"]]
    assert sorted(taken) == sorted(path.name for path in folder.iterdir())


FOLDS: dict[str, Callable[[list[float]], Any]] = {
    "n": len,
    "total": sum,
    "different": lambda values: len(set(values)),
    "values": sorted,
}


@dataclass
class Total:
    """What a key's rows come to."""

    values: list[float] = field(default_factory=list)

    def row(self, columns: list[str]) -> tuple[Any, ...]:
        return tuple(FOLDS[column](self.values) for column in columns)


def totals(frames: list[pl.DataFrame], columns: list[str]) -> list[dict[Any, tuple[Any, ...]]]:
    """Per epoch, the new values of every touched key."""
    state: dict[Any, Total] = {}
    out = []
    for frame in frames:
        touched = set()
        for key, value in frame.select("key", "value").iter_rows():
            state.setdefault(key, Total()).values.append(value)
            touched.add(key)
        out.append({key: state[key].row(columns) for key in touched})
    return out


def by_key(frame: pl.DataFrame, columns: list[str]) -> dict[Any, tuple[Any, ...]]:
    if "values" in columns:
        frame = frame.with_columns(pl.col("values").list.sort())
    rows = {key: tuple(rest) for key, *rest in frame.select("key", *columns).iter_rows()}
    assert len(rows) == frame.height, "a key has two rows"
    return rows


def read_epochs(store: Path | str, folder: Path) -> list[pl.DataFrame]:
    """The input rows of every epoch."""
    return [pl.concat([pl.read_parquet(folder / payload["path"]) for _, payload in entry["splits"]]) for entry in decisions(store)]


def published(out: Path) -> dict[int, pl.DataFrame]:
    """What anyone who reads the output folder sees, by epoch."""
    by_epoch: dict[int, list[pl.DataFrame]] = defaultdict(list)
    for path in sorted(out.glob("*.parquet")):
        by_epoch[int(path.name.split("-")[1])].append(pl.read_parquet(path))
    return {epoch: pl.concat(frames) for epoch, frames in by_epoch.items()}


def check_totals(store: Path | str, folder: Path, out: Path, state: pl.DataFrame) -> None:
    """All input was taken once, and output and state equal the fold of the decisions."""
    check_input_taken_once(store, folder)
    check_fold(read_epochs(store, folder), out, state)


def check_fold(epochs: list[pl.DataFrame], out: Path, state: pl.DataFrame) -> None:
    """Output and state of a flow ``key → n, total, …`` equal the fold of its epochs' rows."""
    columns = [column for column in FOLDS if column in state.columns]
    expected = totals(epochs, columns)
    seen = published(out)
    assert sorted(seen) == [i + 1 for i, touched in enumerate(expected) if touched]
    final: dict[Any, tuple[Any, ...]] = {}
    for number, touched in enumerate(expected, start=1):
        if touched:
            assert by_key(seen[number], columns) == touched, f"epoch {number}"
        final.update(touched)
    assert by_key(state, columns) == final
