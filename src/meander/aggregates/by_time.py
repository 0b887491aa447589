"""``collect``, ``first`` and ``last`` by the time of rows, and not by the order in which they are folded.

A session can be made of others, and a row can come between those that are stored: the order in which its pieces are folded follows from
how input is cut into epochs. So each value is kept with its time, and merging sorts by it. Of equal times the one that arrived first is
first, since pieces are folded in the order of their arrival and sorting is stable.
"""

from __future__ import annotations

import polars as pl

from meander.aggregates.contract import Agg, Part
from meander.aggregates.kinds import Collect, Extreme

TIME = "__time"
"""The column of the rows' time, in microseconds. Rows come in its order."""
_MICROS = pl.Int64()


def follows_order(agg: Agg) -> bool:
    """Whether its value depends on the order of rows."""
    return isinstance(agg, Collect) or (isinstance(agg, Extreme) and agg.fold in ("first", "last"))


def parts_by_time(agg: Agg, schema: pl.Schema) -> dict[str, Part]:
    """The state columns of an aggregate whose pieces are folded in any order of time."""
    parts = agg.parts(schema)
    if not follows_order(agg):
        return parts
    assert agg.column is not None
    known = pl.col(TIME).filter(pl.col(agg.column).is_not_null())
    if isinstance(agg, Collect):
        values, times = (pl.col(f"{agg.name}.{part}").explode() for part in ("values", "time"))
        return {
            "values": Part(parts["values"].dtype, parts["values"].init, values.sort_by(times, maintain_order=True).drop_nulls().implode()),
            "time": Part(pl.List(_MICROS), known.implode(), times.sort().drop_nulls().implode()),
        }
    assert isinstance(agg, Extreme)
    value, time = (pl.col(f"{agg.name}.{part}") for part in ("value", "time"))
    ordered = value.filter(time.is_not_null()).sort_by(time.drop_nulls(), maintain_order=True)
    is_first = agg.fold == "first"
    return {
        "value": Part(parts["value"].dtype, parts["value"].init, ordered.first() if is_first else ordered.last()),
        "time": Part(_MICROS, known.first() if is_first else known.last(), time.min() if is_first else time.max()),
    }
