"""An independent model of what a flow must have published and stored: plain dictionaries over the decisions in the log.

It reads the log's entries as JSON and the input files with Polars; nothing of the engine takes part. Values are multiples of a power
of two, so that sums are exact in any order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl


def decisions(store: Path) -> list[dict[str, Any]]:
    """Every epoch entry of the log, in order. The runs under test retain all of them."""
    entries = [json.loads(path.read_bytes()) for path in store.glob("log/*/*") if not path.name.startswith(".")]
    epochs = sorted((e for e in entries if e["kind"] == "epoch"), key=lambda e: e["epoch"])
    assert [e["epoch"] for e in epochs] == list(range(1, len(epochs) + 1))
    return epochs


def check_input_taken_once(store: Path, folder: Path) -> None:
    """Every input file is in exactly one decision (files here are one split each)."""
    taken = [payload["path"] for entry in decisions(store) for _, payload in entry["splits"]]
    assert sorted(taken) == sorted(path.name for path in folder.iterdir())


def totals(frames: list[pl.DataFrame]) -> list[dict[Any, tuple[int, float]]]:
    """Per epoch, the new count and sum of every touched key."""
    state: dict[Any, tuple[int, float]] = {}
    out = []
    for frame in frames:
        touched = {}
        for key, value in frame.select("key", "value").iter_rows():
            n, total = state.get(key, (0, 0.0))
            state[key] = touched[key] = (n + 1, total + value)
        out.append(touched)
    return out


def read_epochs(store: Path, folder: Path) -> list[pl.DataFrame]:
    """The input rows of every epoch."""
    return [pl.concat([pl.read_parquet(folder / payload["path"]) for _, payload in entry["splits"]]) for entry in decisions(store)]


def published(out: Path) -> dict[int, pl.DataFrame]:
    """What anyone who reads the output folder sees, by epoch."""
    by_epoch: dict[int, list[pl.DataFrame]] = defaultdict(list)
    for path in sorted(out.glob("*.parquet")):
        by_epoch[int(path.name.split("-")[1])].append(pl.read_parquet(path))
    return {epoch: pl.concat(frames) for epoch, frames in by_epoch.items()}


def check_totals(store: Path, folder: Path, out: Path, state: pl.DataFrame) -> None:
    """Output and state of a flow ``key → n, total`` equal the fold of its decisions, and all input was taken once."""
    check_input_taken_once(store, folder)
    expected = totals(read_epochs(store, folder))
    seen = published(out)
    assert sorted(seen) == [i + 1 for i, touched in enumerate(expected) if touched]
    for number, touched in enumerate(expected, start=1):
        if touched:
            rows = [(k, (n, total)) for k, n, total in seen[number].select("key", "n", "total").iter_rows()]
            assert len(rows) == len(touched), f"epoch {number}"
            assert dict(rows) == touched, f"epoch {number}"
    final: dict[Any, tuple[int, float]] = {}
    for touched in expected:
        final.update(touched)
    rows = [(k, (n, total)) for k, n, total in state.select("key", "n", "total").iter_rows()]
    assert len(rows) == len(final)
    assert dict(rows) == final
