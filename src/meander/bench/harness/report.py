"""The report of a benchmark: a table for people, one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from meander.bench.harness.statistics import Json


@dataclass(frozen=True)
class Table:
    """A readable table: the first column is left-aligned, numbers are right-aligned."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        widths = [max(len(row[i]) for row in (self.columns, *self.rows)) for i in range(len(self.columns))]
        lines = [self.columns, tuple("-" * width for width in widths), *self.rows]
        return "\n".join(
            "  ".join(_pad(cell, width, i == 0) for i, (cell, width) in enumerate(zip(line, widths, strict=True))) for line in lines
        )


@dataclass(frozen=True)
class Report:
    """One benchmark's result. In ``ratios`` a number above 1 means that Meander is the better one, unless ``notes`` say otherwise."""

    bench: str
    config: Json
    rounds: int
    systems: dict[str, Json]
    ratios: dict[str, float]
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default=())

    def text(self) -> str:
        parts = [table.text() for table in self.tables]
        parts.extend(self.notes)
        return "\n\n".join(parts)

    def json_line(self) -> str:
        """The object of the public contract, on one line."""
        fields = {"bench": self.bench, "config": self.config, "rounds": self.rounds, "systems": self.systems, "ratios": self.ratios}
        return json.dumps(fields, allow_nan=False)


def _pad(cell: str, width: int, left: bool) -> str:
    return cell.ljust(width) if left else cell.rjust(width)


def parts_table(title: str, systems: dict[str, Json], part: str) -> Table | None:
    """Where an epoch's time goes, one row per part that anyone names; None where nobody does."""
    names = list(dict.fromkeys(name for system in systems.values() for name in system.get(part, {})))
    if not names:
        return None
    rows = [(name, *(_milliseconds(system.get(part, {}).get(name)) for system in systems.values())) for name in names]
    return Table((title, *systems), tuple(rows))


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def short(count: int) -> str:
    """A count as people write it.

    >>> short(10_000), short(100_000), short(1_000_000), short(2_500_000), short(999)
    ('10k', '100k', '1M', '2.5M', '999')
    """
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if count >= size:
            return f"{count / size:g}{unit}"
    return str(count)
