"""``testing.check`` finds flows whose results depend on how their input is cut, and no others."""

# ruff: noqa: RUF012

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meander as md
from meander import testing

ROWS = [("abc"[number % 3], number, f"2026-03-01T10:00:{number:02}") for number in range(30)]
COLUMNS = {"k": "string", "v": "long", "ts": "timestamp"}


class Calls(md.Processor):
    """Wrong: counts calls, not rows."""

    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += 1
        yield (state.n,)


def flow_of(write: Any) -> md.Flow:
    flow = md.Flow("f")
    write(flow.source("rows", testing.source(COLUMNS, []))).sink("out", md.discard())
    return flow


@pytest.mark.many
@pytest.mark.parametrize(
    "write",
    [
        lambda rows: rows.filter("v > 3").select("k", "v * 2 as v"),
        lambda rows: rows.key_by("k").aggregate(md.sum("v").alias("v"), md.mean("v").alias("m")),
        lambda rows: rows.watermark("ts").key_by("k").window(md.tumbling("7s")).aggregate(md.count().alias("n")),
        lambda rows: rows.watermark("ts").key_by("k").deduplicate(ttl="5s"),
    ],
)
def test_what_does_not_depend_on_the_cuts_passes(tmp_path: Path, write: Any) -> None:
    assert testing.check(flow_of(write), tmp_path, {"rows": ROWS})["out"].height


def test_what_depends_on_the_cuts_is_found(tmp_path: Path) -> None:
    flow = flow_of(lambda rows: rows.key_by("k").process(Calls, name="calls"))
    with pytest.raises(AssertionError, match=r"sink 'out' gets something else .* epochs of \(rows: [\d, ]+\), with seed=0"):
        testing.check(flow, tmp_path, {"rows": ROWS})


def test_every_source_needs_rows(tmp_path: Path) -> None:
    flow = flow_of(lambda rows: rows)
    with pytest.raises(md.FlowError, match="rows are given of row; the sources of flow 'f' are rows"):
        testing.check(flow, tmp_path, {"row": ROWS})
    with pytest.raises(md.FlowError, match="source 'rows', row 1: "):
        testing.check(flow, tmp_path, {"rows": [("a",)]})
