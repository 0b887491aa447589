"""Partial states before and after the exchange: the work that all aggregations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from meander.aggregates import Part
from meander.state.grouping import Index, fold_rows, fold_states, group_rows
from meander.state.hashing import Hashes, hash_keys, in_groups
from meander.state.segment import HASH
from meander.task.operators.contract import Intake, Partial
from meander.task.rows import UNIT, Rows, Units


def hashes_of(frame: pl.DataFrame, keys: Sequence[str]) -> Hashes:
    """The hashes of rows' keys. Without a key all rows have one."""
    return hash_keys(frame.select(keys)) if keys else np.zeros(frame.height, np.uint64)


def keep_groups(rows: Rows, hashes: Hashes, intake: Intake) -> tuple[Rows, Hashes]:
    """Only the rows of the key groups that are wanted."""
    if intake.groups is not None:
        mask = in_groups(hashes, intake.groups, intake.key_groups)
        if not mask.all():
            return rows.filter(pl.Series(mask)), hashes[mask]
    return rows, hashes


def fold_before(rows: Rows, hashes: Hashes, identity: Sequence[str], parts: Mapping[str, Part], intake: Intake) -> pl.DataFrame:
    """Rows to partial states, one per key and unit."""
    rows, hashes = keep_groups(rows, hashes, intake)
    keys = rows.frame.select(identity)
    groups = group_rows(keys, hashes, rows.units)
    states = fold_rows(rows.frame, groups, parts)
    columns = [pl.Series(HASH, groups.hashes), *take(keys, groups.heads), *states.values()]
    if rows.units is not None:
        columns.append(pl.Series(UNIT, rows.units[groups.heads]))
    return pl.DataFrame(columns)


def fold_after(
    arrived: Sequence[Partial], identity: Sequence[str], parts: Mapping[str, Part]
) -> tuple[pl.DataFrame, Hashes, dict[str, pl.Series]]:
    """Partial states in the order of their units, to one per key: keys, hashes (ascending) and states."""
    frame, hashes, units = _stack(arrived)
    keys = frame.select(identity)
    if len(arrived) == 1 and units is None:
        return keys, hashes, {name: frame.get_column(name) for name in parts}
    if units is not None:
        order = np.argsort(units, kind="stable")
        frame, hashes, keys = frame[order], hashes[order], pl.DataFrame(take(keys, order))
    groups = group_rows(keys, hashes)
    return pl.DataFrame(take(keys, groups.heads)), groups.hashes, fold_states(frame, groups, parts)


def _stack(partials: Sequence[Partial]) -> tuple[pl.DataFrame, Hashes, Units | None]:
    """All partial states in the order of their units."""
    if all(p.unit is not None for p in partials):
        frames = [p.frame for p in sorted(partials, key=lambda p: p.unit or 0)]
        frame = frames[0] if len(frames) == 1 else pl.concat(frames)
        return frame, frame.get_column(HASH).to_numpy(), None
    frame = pl.concat([with_units(p) for p in partials])
    return frame, frame.get_column(HASH).to_numpy(), frame.get_column(UNIT).to_numpy()


def with_units(partial: Partial) -> pl.DataFrame:
    """A partial's frame with a unit for every row."""
    if partial.unit is None:
        return partial.frame
    return partial.frame.with_columns(pl.Series(UNIT, np.full(partial.frame.height, partial.unit, np.uint64)))


def take(frame: pl.DataFrame, rows: Index) -> list[pl.Series]:
    """Some rows, column by column. A stream without a key has keys without columns, and a frame without columns has no rows."""
    return [column.gather(rows) for column in frame.get_columns()]


def one_zero(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Replace -0.0 by 0.0: equal keys, or equal rows, get one text, whichever came first."""
    floats = [name for name, dtype in frame.schema.items() if dtype.is_float() and name in columns]
    zero = [pl.when(pl.col(name) == 0.0).then(pl.lit(0.0, frame.schema[name])).otherwise(name).alias(name) for name in floats]
    return frame.with_columns(zero) if floats else frame
