"""Grouping rows by key: one sort by hash, then folds over runs.

Everything stateful goes through here, in both stages of an epoch, so that the order in which values are
folded is the same on every path: rows of one key in order of position, and never another. (Float sums
folded in another order differ in their last bits.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.aggregates import Part
from meander.state.hashing import Hashes

Index = npt.NDArray[np.intp]
Numbers = npt.NDArray[Any]
Valid = npt.NDArray[np.bool_] | None
_FOLDS = {"sum": np.add, "min": np.fmin, "max": np.fmax}


@dataclass(frozen=True)
class Groups:
    """Rows in hash order: ``order`` sorts them, ``starts`` says where each group begins."""

    order: Index
    starts: Index
    hashes: Hashes
    """One per group, ascending."""
    rows: int

    @property
    def heads(self) -> Index:
        """The first row of every group, in the original numbering."""
        return self.order[self.starts]

    def ids(self) -> pl.Series:
        """The group number of every row in sorted order."""
        sizes = np.diff(np.append(self.starts, self.rows))
        return pl.Series("__group", np.repeat(np.arange(len(self.starts), dtype=np.uint32), sizes)).set_sorted()


def order_by_hash(hashes: Hashes) -> Index:
    """A stable order by hash, several times faster than a stable argsort.

    The row number replaces the hash's low bits, so that sorting plain words sorts stably; the few runs in
    which different hashes share their high bits are put right afterwards.
    """
    n = len(hashes)
    if n < 2:
        return np.arange(n)
    bits = (n - 1).bit_length()
    low = np.uint64((1 << bits) - 1)
    packed = (hashes & ~low) | np.arange(n, dtype=np.uint64)
    packed.sort()
    order = (packed & low).astype(np.intp)
    ordered = hashes[order]
    inversions = np.flatnonzero(ordered[:-1] > ordered[1:])
    if len(inversions):
        high = packed & ~low
        spans = {(int(np.searchsorted(high, high[i], "left")), int(np.searchsorted(high, high[i], "right"))) for i in inversions}
        for begin, end in spans:
            run = order[begin:end]
            order[begin:end] = run[np.argsort(hashes[run], kind="stable")]
    return order


def group_rows(keys: pl.DataFrame, hashes: Hashes, units: npt.NDArray[np.uint64] | None = None) -> Groups:
    """Group rows by key, and by unit where ``units`` is given. Groups ascend by (hash, key, unit); rows keep their order within."""
    n = len(hashes)
    if n == 0:
        return Groups(np.zeros(0, np.intp), np.zeros(0, np.intp), hashes, 0)
    order = np.lexsort((units, hashes)) if units is not None else order_by_hash(hashes)
    ordered = hashes[order]
    same_hash = ordered[1:] == ordered[:-1]
    same_key = same_hash.copy()
    candidates = np.flatnonzero(same_hash)
    if len(candidates):
        same_key[candidates] = keys_equal(keys, order[candidates], keys, order[candidates + 1])
    if not np.array_equal(same_key, same_hash):  # two keys share a hash: sort by the keys themselves, too
        order = _order_by_key(keys, hashes, units)
        ordered = hashes[order]
        same_key = keys_equal(keys, order[:-1], keys, order[1:])
    if units is not None:
        same_key &= units[order[1:]] == units[order[:-1]]
    starts = np.flatnonzero(np.concatenate([[True], ~same_key]))
    return Groups(order, starts, ordered[starts], n)


def keys_equal(left: pl.DataFrame, left_rows: Index, right: pl.DataFrame, right_rows: Index) -> npt.NDArray[np.bool_]:
    """Row by row, whether two rows have the same key. Null equals null, NaN equals NaN, 0.0 equals -0.0."""
    equal = np.ones(len(left_rows), np.bool_)
    for name in left.columns:
        a, b = left.get_column(name), right.get_column(name)
        if a.dtype.is_integer() and a.null_count() == 0 and b.null_count() == 0:
            equal &= a.to_numpy()[left_rows] == b.to_numpy()[right_rows]
        else:
            equal &= a.gather(left_rows).eq_missing(b.gather(right_rows)).to_numpy()
    return equal


def values_same(left: pl.DataFrame, left_rows: Index, right: pl.DataFrame, right_rows: Index) -> npt.NDArray[np.bool_]:
    """Row by row, whether an expression must make the same of two rows: 0.0 and -0.0 are equal, and their text is not."""
    same = keys_equal(left, left_rows, right, right_rows)
    for name, dtype in left.schema.items():
        if (text := _floats_as_text(dtype)) is not None and same.any():
            at = np.flatnonzero(same)
            a, b = left.get_column(name).gather(left_rows[at]), right.get_column(name).gather(right_rows[at])
            if dtype.is_float():
                at = at[(a == 0.0).fill_null(value=False).to_numpy()]  # only these have two forms
                a, b = left.get_column(name).gather(left_rows[at]), right.get_column(name).gather(right_rows[at])
            same[at] = a.cast(text).eq_missing(b.cast(text)).to_numpy()
    return same


def _floats_as_text(dtype: pl.DataType) -> pl.DataType | None:
    """The type with text where it has floats; None where it has none."""
    if dtype.is_float():
        return pl.String()
    if isinstance(dtype, pl.List | pl.Array):
        inner = _floats_as_text(pl.Schema({"": dtype.inner})[""])
        if inner is None:
            return None
        return pl.List(inner) if isinstance(dtype, pl.List) else pl.Array(inner, dtype.size)
    if isinstance(dtype, pl.Struct):
        types = {field.name: pl.Schema({"": field.dtype})[""] for field in dtype.fields}
        texts = {name: _floats_as_text(own) for name, own in types.items()}
        return pl.Struct({name: text or types[name] for name, text in texts.items()}) if any(texts.values()) else None
    return None


def fold_rows(frame: pl.DataFrame, groups: Groups, parts: Mapping[str, Part]) -> dict[str, pl.Series]:
    """Input rows to one partial state per group: the first half of every aggregate."""
    return _fold(frame, groups, parts, lift=True)


def fold_states(frame: pl.DataFrame, groups: Groups, parts: Mapping[str, Part]) -> dict[str, pl.Series]:
    """Several states per group to one, in order: the second half."""
    return _fold(frame, groups, parts, lift=False)


def merge_pairs(old: Mapping[str, pl.Series], new: Mapping[str, pl.Series], parts: Mapping[str, Part]) -> dict[str, pl.Series]:
    """Two states per key, row by row, old before new, to one."""
    merged: dict[str, pl.Series] = {}
    slow: dict[str, pl.Expr] = {}
    for name, part in parts.items():
        if part.fold is not None and _is_number(part.dtype):
            merged[name] = _merge_numbers(name, old[name], new[name], part.fold)
        else:
            slow[name] = part.merge
    if slow:
        size = len(next(iter(old.values())))
        pair = pl.Series("__group", np.arange(size, dtype=np.uint32))
        stacked = pl.concat([pl.DataFrame([*old.values(), pair]), pl.DataFrame([*(new[name] for name in old), pair])])
        result = stacked.group_by("__group", maintain_order=True).agg([expr.alias(name) for name, expr in slow.items()])
        for name in slow:
            merged[name] = result.get_column(name).cast(parts[name].dtype)
    return {name: merged[name] for name in parts}


def _fold(frame: pl.DataFrame, groups: Groups, parts: Mapping[str, Part], lift: bool) -> dict[str, pl.Series]:
    folded: dict[str, pl.Series] = {}
    slow: dict[str, pl.Expr] = {}
    columns: dict[tuple[str, str], tuple[Numbers, Valid]] = {}
    for name, part in parts.items():
        source = _number_column(frame, name, part, lift)
        if source is None:
            slow[name] = part.init if lift else part.merge
        elif source == "":
            sizes = np.diff(np.append(groups.starts, groups.rows))
            folded[name] = pl.Series(name, sizes, dtype=part.dtype)
        else:
            cached = (source, str(part.dtype))
            if cached not in columns:
                columns[cached] = _numbers(frame.get_column(source).cast(part.dtype), groups.order)
            folded[name] = _fold_numbers(name, *columns[cached], groups, part)
    if slow:
        grouped = frame[groups.order].with_columns(groups.ids()).group_by("__group", maintain_order=True)
        result = grouped.agg([expr.alias(name) for name, expr in slow.items()])
        for name in slow:
            folded[name] = result.get_column(name).cast(parts[name].dtype)
    return {name: folded[name] for name in parts}


def _number_column(frame: pl.DataFrame, name: str, part: Part, lift: bool) -> str | None:
    """The column that NumPy folds for a part; "" where the answer is the number of rows; None where Polars must do it.

    Decided by types and, for counts, in a way that cannot change a result: which way is taken must not depend on the
    other keys in a batch, since the two ways add floats in different orders.
    """
    if part.fold is None or not _is_number(part.dtype):
        return None
    if not lift:
        return name
    if part.lift is None:
        return None
    kind, source = part.lift
    if kind == "rows" or (kind == "valid" and source is not None and frame.get_column(source).null_count() == 0):
        return ""
    if kind == "valid" or source is None or not _is_number(frame.schema[source]):
        return None
    return source


def _numbers(series: pl.Series, order: Index | None) -> tuple[Numbers, Valid]:
    """A column's values, and where they are valid (None: everywhere). Nulls are 0 there."""
    if series.null_count() == 0:
        values = series.to_numpy()
        return (values if order is None else values[order]), None
    valid = series.is_not_null().to_numpy()
    values = series.fill_null(0).to_numpy()
    return (values, valid) if order is None else (values[order], valid[order])


def _fold_numbers(name: str, values: Numbers, valid: Valid, groups: Groups, part: Part) -> pl.Series:
    """NumPy's segmented fold, nulls ignored. A group's result depends on its own rows alone, to the last bit."""
    starts = groups.starts
    if len(starts) == 0:
        return pl.Series(name, values[:0], dtype=part.dtype)
    any_valid = None if valid is None else np.logical_or.reduceat(valid, starts)
    if part.fold in ("first", "last"):
        if valid is None:
            at = starts if part.fold == "first" else np.append(starts[1:], groups.rows) - 1
        elif part.fold == "first":
            at = np.minimum(np.minimum.reduceat(np.where(valid, np.arange(len(valid)), len(valid)), starts), len(valid) - 1)
        else:
            at = np.maximum(np.maximum.reduceat(np.where(valid, np.arange(len(valid)), -1), starts), 0)
        result = values[at]
    else:
        assert part.fold is not None
        if valid is not None and part.fold != "sum":
            values = np.where(valid, values, _neutral(values.dtype, part.fold))
        result = _FOLDS[part.fold].reduceat(values, starts)
    return _series(name, result, any_valid, part.dtype)


def _merge_numbers(name: str, old: pl.Series, new: pl.Series, fold: str) -> pl.Series:
    x, x_valid = _numbers(old, None)
    y, y_valid = _numbers(new, None)
    if x_valid is None and y_valid is None:
        result = x if fold == "first" else y if fold == "last" else _FOLDS[fold](x, y)
        return pl.Series(name, result, dtype=old.dtype)
    x_valid = np.ones(len(x), np.bool_) if x_valid is None else x_valid
    y_valid = np.ones(len(y), np.bool_) if y_valid is None else y_valid
    both = x if fold == "first" else y if fold == "last" else _FOLDS[fold](x, y)
    return _series(name, np.where(x_valid & y_valid, both, np.where(x_valid, x, y)), x_valid | y_valid, old.dtype)


def _neutral(dtype: np.dtype[Any], fold: str) -> Any:
    if dtype.kind == "f":
        return np.nan
    return np.iinfo(dtype).max if fold == "min" else np.iinfo(dtype).min


def _series(name: str, values: Numbers, valid: Valid, dtype: pl.DataType) -> pl.Series:
    series = pl.Series(name, values, dtype=dtype)
    if valid is None or valid.all():
        return series
    return pl.select(pl.when(pl.Series(valid)).then(series).alias(name)).to_series()


def _is_number(dtype: pl.DataType) -> bool:
    return dtype.is_integer() or dtype.is_float()


def _order_by_key(keys: pl.DataFrame, hashes: Hashes, units: npt.NDArray[np.uint64] | None) -> Index:
    columns = [pl.Series("__hash", hashes), *keys.get_columns()]
    if units is not None:
        columns.append(pl.Series("__unit", units))
    ordered = pl.DataFrame(columns).with_row_index("__row").sort([c.name for c in columns] + ["__row"], nulls_last=False)
    return ordered.get_column("__row").to_numpy().astype(np.intp)
