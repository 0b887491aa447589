"""The span of event time in an epoch must not multiply files: a year of rows is written in as many as a minute of them.

One table per stretch of time is right for a dense stream and ruins a backfill: rows that span a day once made thousands of files per
epoch. The input is the benchmark's: as many rows, keys and windows whatever the span. Without Spark, and without merges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.local import Local

from meander.bench.backfill.check import compare
from meander.bench.backfill.ours import build
from meander.bench.backfill.request import OPERATORS, SPANS, BackfillRequest, write_visits

EPOCHS, SLOTS = 3, 2
FILES_PER_SLOT = 4
"""A slot writes one segment per table and epoch; no operator here has more tables."""


class NoMerges:
    def __init__(self, *_: Any) -> None: ...

    def consider(self, *_: Any) -> None: ...

    def collect(self) -> None: ...

    def close(self) -> None: ...


def files_by_epoch(folder: Path, operator: str, span: str) -> list[int]:
    """How many segments each epoch adds, of a run whose output is what DuckDB finds."""
    write_visits(folder / "in", SPANS[span], EPOCHS, rows=400, seed=0)
    request = BackfillRequest("meander", operator, str(folder / "in"), EPOCHS, str(folder / "run"), "", SLOTS, "")
    local = Local(build(request), folder / "run" / "store", SLOTS, merges=NoMerges)
    local.loop.input.look()
    known: set[str] = set()
    added = []
    while local.step():
        names = {segment.name for table in local.manifest.tables.values() for segment in table.segments}
        added.append(len(names - known))
        known |= names
    compare(request)
    return added[:EPOCHS]


@pytest.mark.many
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_epoch_writes_as_many_files_for_a_year_as_for_a_minute(tmp_path: Path, operator: str) -> None:
    minute, year = (files_by_epoch(tmp_path / span, operator, span) for span in ("minute", "year"))
    assert year == minute
    assert max(year) <= FILES_PER_SLOT * SLOTS
