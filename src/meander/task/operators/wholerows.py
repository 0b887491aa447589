"""Rows that go through the exchange as they are, and one order for a key's rows on the other side.

A row's place is its unit and its position within the unit. Both are the same at any parallelism and down both paths of a small epoch:
so is the order by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.state.grouping import order_by_hash
from meander.state.hashing import Hashes, hash_keys, in_groups
from meander.state.segment import HASH
from meander.task.operators.contract import Intake, Partial
from meander.task.operators.folding import with_units
from meander.task.rows import UNIT, Rows

POSITION = "__position"
Positions = npt.NDArray[np.int64]


def send_whole(rows: Rows, keys: Sequence[str], intake: Intake, positions: Positions | None = None) -> pl.DataFrame:
    """Rows as they are, ascending by the hash of their keys, with their place. The caller passes
    the positions of rows that are sent more than once."""
    hashes = hash_keys(rows.frame.select(keys)) if keys else np.zeros(rows.frame.height, np.uint64)
    extra = [pl.Series(POSITION, positions_of(rows, intake) if positions is None else positions)]
    if rows.units is not None:
        extra.append(pl.Series(UNIT, rows.units))
    frame = pl.DataFrame([pl.Series(HASH, hashes), *rows.frame.get_columns(), *extra])
    if intake.groups is not None:
        mask = in_groups(hashes, intake.groups, intake.key_groups)
        if not mask.all():
            frame, hashes = frame.filter(pl.Series(mask)), hashes[mask]
    return frame[order_by_hash(hashes)]


def in_order(arrived: Sequence[Partial], side: int | None = None) -> tuple[pl.DataFrame, Hashes] | None:
    """All rows that have arrived (of one input), by hash, unit and position: a key's rows in the one order. None where there are none."""
    mine = [p for p in arrived if side is None or p.side == side]
    if not mine:
        return None
    units = {p.unit for p in mine}
    if None not in units and len(units) == len(mine) and all(_is_in_order(p.frame) for p in mine):  # a stable sort by hash is much faster
        parts = [p.frame for p in sorted(mine, key=lambda p: p.unit or 0)]
        whole = parts[0] if len(parts) == 1 else pl.concat([f.select(parts[0].columns) for f in parts])
        if len(parts) > 1:
            whole = whole[order_by_hash(whole.get_column(HASH).to_numpy())]
        return whole, whole.get_column(HASH).to_numpy()
    frames = [with_units(p) for p in mine]
    frame = frames[0] if len(frames) == 1 else pl.concat([f.select(frames[0].columns) for f in frames])
    hashes = frame.get_column(HASH).to_numpy()
    order = np.lexsort((frame.get_column(POSITION).to_numpy(), frame.get_column(UNIT).to_numpy(), hashes))
    frame = frame[order]
    return frame, frame.get_column(HASH).to_numpy()


def _is_in_order(frame: pl.DataFrame) -> bool:
    """Whether a unit's rows of one hash come by position: an operator that sends only some of them may send them otherwise."""
    hashes, positions = frame.get_column(HASH).to_numpy(), frame.get_column(POSITION).to_numpy()
    return bool(((hashes[1:] != hashes[:-1]) | (positions[1:] > positions[:-1])).all())


def positions_of(rows: Rows, intake: Intake) -> Positions:
    """Every row's place within its unit, whatever part of the unit is here."""
    height = rows.frame.height
    if rows.units is None:
        assert rows.unit is not None
        first = intake.counted.get(rows.unit, 0)
        intake.counted[rows.unit] = first + height
        return np.arange(first, first + height, dtype=np.int64)
    positions = np.empty(height, np.int64)
    edges = np.concatenate([[0], np.flatnonzero(rows.units[1:] != rows.units[:-1]) + 1, [height]])
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if begin != end:
            unit = int(rows.units[begin])
            first = intake.counted.get(unit, 0)
            intake.counted[unit] = first + end - begin
            positions[begin:end] = np.arange(first, first + end - begin)
    return positions
