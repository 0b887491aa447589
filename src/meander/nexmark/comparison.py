"""Whether two results are the same rows, and in plain words where they are not.

The order of rows and of columns means nothing; how often a row is there does. Integers, text and times must be equal, floats within
``TOLERANCE`` of each other, relative to the larger; null equals null, NaN equals NaN. Rows are paired by everything but their floats;
among rows that are equal otherwise, floats are paired in ascending order, column by column from the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

TOLERANCE = 1e-9
_COPY = "copy of equal rows"
_ALIKE = 10_000  # how many rows are searched for the one that is most like a missing one


@dataclass(frozen=True)
class Difference:
    """The difference between a result and the expected one."""

    missing: int
    """Rows that were expected and are not there."""
    surplus: int
    """Rows that are there and were not expected."""
    unequal: int
    """Rows that are there, with another number in a float column."""
    words: str

    def __str__(self) -> str:
        return self.words


def compare(found: pa.Table | pl.DataFrame, expected: pa.Table | pl.DataFrame) -> Difference | None:
    """None where the two have the same rows.

    >>> print(compare(pl.DataFrame({"k": [1, 3]}), pl.DataFrame({"k": [1, 2]})))
    2 rows were expected and 2 found: 1 is missing, 1 too many.
    The first that is missing: k=2.
    The first too many: k=3.
    """
    left, right = _plain(found), _plain(expected)
    if set(left.columns) != set(right.columns):
        return _other_columns(left, right)
    left = left.select(right.columns)
    kinds = [name for name in right.columns if left.schema[name] != right.schema[name]]
    if kinds:
        said = "; ".join(f"column {name} is {left.schema[name]} and was expected to be {right.schema[name]}" for name in kinds)
        return Difference(right.height, left.height, 0, f"{said}.")
    floats = [name for name, dtype in right.schema.items() if dtype.is_float()]
    exact = [name for name in right.columns if name not in floats]
    if left.height == right.height and _same(_arranged(left, exact, floats), _arranged(right, exact, floats), exact, floats):
        return None
    left, right = _numbered(left, exact, floats), _numbered(right, exact, floats)
    pairs = right.join(left, on=[*exact, _COPY], how="inner", nulls_equal=True, suffix=" found")
    unequal = pairs.filter(pl.any_horizontal([~_close(name) for name in floats])) if floats else pairs.clear()
    if pairs.height == left.height == right.height and not unequal.height:
        return None
    missing = right.join(left, on=[*exact, _COPY], how="anti", nulls_equal=True).drop(_COPY)
    surplus = left.join(right, on=[*exact, _COPY], how="anti", nulls_equal=True).drop(_COPY)
    words = [_count(right.height, left.height, missing.height, surplus.height, unequal.height)]
    if missing.height:
        words.append(f"The first that is missing: {_show(missing.row(0, named=True))}.{_most_alike(missing, surplus)}")
    if surplus.height:
        words.append(f"The first too many: {_show(surplus.row(0, named=True))}.")
    if unequal.height:
        words.append(_first_unequal(unequal, exact, floats))
    return Difference(missing.height, surplus.height, unequal.height, "\n".join(words))


def _plain(table: pa.Table | pl.DataFrame) -> pl.DataFrame:
    """One type for integers, one for floats, one for times: a wider one is not a difference."""
    frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(pl.from_arrow(table))
    casts = []
    for name, dtype in frame.schema.items():
        if dtype.is_integer():
            casts.append(pl.col(name).cast(pl.Int64))
        elif dtype.is_float() or dtype.is_decimal():
            casts.append(pl.col(name).cast(pl.Float64))
        elif isinstance(dtype, pl.Datetime):
            casts.append(pl.col(name).dt.replace_time_zone(None).cast(pl.Datetime("us")))
        elif isinstance(dtype, pl.Categorical | pl.Enum):
            casts.append(pl.col(name).cast(pl.String))
    return frame.with_columns(casts)


def _arranged(frame: pl.DataFrame, exact: Sequence[str], floats: Sequence[str]) -> pl.DataFrame:
    """The rows in an order that depends on their content alone; by hashes, since sorting a million rows by their texts takes long."""
    hashes = frame.select(exact).hash_rows() if exact else pl.zeros(frame.height, pl.UInt64, eager=True)
    keys = pl.DataFrame([hashes.alias("hash"), *(frame[name] for name in floats)])
    return frame[keys.select(pl.arg_sort_by("hash", *floats, nulls_last=True)).to_series()]


def _same(found: pl.DataFrame, expected: pl.DataFrame, exact: Sequence[str], floats: Sequence[str]) -> bool:
    """Whether rows in the same places are the same. False may be two rows with one hash in another order: a closer look tells."""
    if exact and not found.select(exact).equals(expected.select(exact)):
        return False
    beside = pl.DataFrame([expected[name] for name in floats] + [found[name].alias(f"{name} found") for name in floats])
    return all(bool(beside.select(_close(name).all()).item()) for name in floats)


def _numbered(frame: pl.DataFrame, exact: Sequence[str], floats: Sequence[str]) -> pl.DataFrame:
    """Equal rows get numbers, so that each is paired once."""
    if floats:
        frame = frame.sort(floats, nulls_last=True, maintain_order=True)
    number = pl.int_range(pl.len(), dtype=pl.Int64)
    return frame.with_columns((number.over(exact) if exact else number).alias(_COPY))


def _close(name: str) -> pl.Expr:
    expected, found = pl.col(name), pl.col(f"{name} found")
    near = (expected - found).abs() <= TOLERANCE * pl.max_horizontal(expected.abs(), found.abs())
    # Equal also covers infinities, whose difference is no number, and two nulls.
    return expected.eq_missing(found) | near.fill_null(False)


def _count(expected: int, found: int, missing: int, surplus: int, unequal: int) -> str:
    parts = []
    if missing:
        parts.append(f"{missing:,} {'is' if missing == 1 else 'are'} missing")
    if surplus:
        parts.append(f"{surplus:,} too many")
    if unequal:
        parts.append(f"{unequal:,} with another number")
    return f"{expected:,} rows were expected and {found:,} found: {', '.join(parts)}."


def _most_alike(missing: pl.DataFrame, surplus: pl.DataFrame) -> str:
    """The first missing row beside the row too many that agrees with it in most columns: often the same one, gone wrong."""
    if not surplus.height:
        return ""
    wanted = missing.row(0, named=True)
    agree = [pl.col(name).eq_missing(pl.lit(value, dtype=missing.schema[name])).cast(pl.Int32) for name, value in wanted.items()]
    scores = surplus.head(_ALIKE).select(pl.sum_horizontal(agree).alias("score"))["score"]
    best = int(scores.arg_max() or 0)
    if not scores[best]:
        return ""
    alike = surplus.row(best, named=True)
    wrong = [f"{name} is {_text(alike[name])}, not {_text(value)}" for name, value in wanted.items() if alike[name] != value]
    return f" The most similar row too many differs from it in {len(wrong)} of {len(wanted)} columns: {', '.join(wrong)}."


def _first_unequal(unequal: pl.DataFrame, exact: Sequence[str], floats: Sequence[str]) -> str:
    row = unequal.with_columns(_close(name).alias(f"{name} close") for name in floats).row(0, named=True)
    wrong = [f"{name} is {_text(row[f'{name} found'])}, not {_text(row[name])}" for name in floats if not row[f"{name} close"]]
    return f"The first with another number: {_show({name: row[name] for name in exact})}: {', '.join(wrong)}."


def _other_columns(found: pl.DataFrame, expected: pl.DataFrame) -> Difference:
    missing = [name for name in expected.columns if name not in found.columns]
    surplus = [name for name in found.columns if name not in expected.columns]
    parts = [f"{word} {', '.join(names)}" for word, names in (("without", missing), ("with", surplus)) if names]
    words = f"The columns differ: the result is {' and '.join(parts)}; expected are {', '.join(expected.columns)}."
    return Difference(expected.height, found.height, 0, words)


def _show(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in row.items())


def _text(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
