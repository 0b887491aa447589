"""Values that Python can represent. Polars has times in years that Python's datetime lacks;
converting one raises, or worse.

Code that makes Python objects of rows calls ``beyond`` first; dead letters have such times as
numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

_DAY = 86_400
_PER_SECOND = {"ms": 1_000, "us": 1_000_000}
_YEAR_1, _YEAR_10000 = -62_135_596_800, 253_402_300_800
"""The first second that Python has, and the first that it has not."""
_LONGEST = 999_999_999 * _DAY
"""Seconds of the longest timedelta."""

Mask = npt.NDArray[np.bool_]


def beyond(series: pl.Series) -> Mask | None:
    """A mask of the values that Python cannot represent; None if it can represent all.

    >>> beyond(pl.Series([0, 1 << 60]).cast(pl.Datetime("us")))
    array([False,  True])
    >>> beyond(pl.Series([[0], [], [0, 1 << 60]]).cast(pl.List(pl.Datetime("us"))))
    array([False, False,  True])
    """
    dtype = series.dtype
    if not _has_times(dtype) or len(series) == 0:
        return None
    if isinstance(dtype, pl.Struct):
        found: Mask | None = None
        for field in dtype.fields:
            if (part := beyond(series.struct.field(field.name))) is not None:
                found = part if found is None else found | part
        return found
    if isinstance(dtype, pl.List | pl.Array):
        if beyond(series.explode()) is None:
            return None
        return np.array([beyond(series[at : at + 1].explode()) is not None for at in range(len(series))])
    bounds = _bounds(dtype)
    if bounds is None:
        return None
    numbers = series.to_physical()
    bad: Mask = (~numbers.is_between(*bounds)).fill_null(value=False).to_numpy()
    return bad if bad.any() else None


def as_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with the columns as numbers that have something which Python has nothing for."""
    return frame.with_columns([series.to_physical() for series in frame.get_columns() if beyond(series) is not None])


def to_python(series: pl.Series) -> list[Any]:
    """A column as Python objects; numbers where Python has nothing else.

    >>> to_python(pl.Series([0, 1 << 60]).cast(pl.Date(), strict=False).dt.epoch("d"))
    [0, None]
    >>> to_python(pl.Series([0, 1 << 60]).cast(pl.Datetime("us")))
    [datetime.datetime(1970, 1, 1, 0, 0), 1152921504606846976]
    """
    bad = beyond(series)
    if bad is None:
        return series.to_list()
    plain, numbers = iter(series.filter(pl.Series(~bad)).to_list()), series.to_physical().to_list()
    return [numbers[at] if one else next(plain) for at, one in enumerate(bad.tolist())]


def _has_times(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_has_times(pl.Schema({"": field.dtype})[""]) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _has_times(pl.Schema({"": dtype.inner})[""])
    return isinstance(dtype, pl.Datetime | pl.Date | pl.Duration)


def _bounds(dtype: pl.DataType) -> tuple[int, int] | None:
    """The least and the greatest number; None where all are fine."""
    if isinstance(dtype, pl.Date):
        return _YEAR_1 // _DAY, _YEAR_10000 // _DAY - 1
    if isinstance(dtype, pl.Duration):
        return (-_LONGEST * 1000, _LONGEST * 1000) if dtype.time_unit == "ms" else None
    assert isinstance(dtype, pl.Datetime)
    per_second = _PER_SECOND.get(dtype.time_unit)
    if per_second is None:  # nanoseconds span three centuries
        return None
    spare = _DAY if dtype.time_zone is not None else 0
    return (_YEAR_1 + spare) * per_second, (_YEAR_10000 - spare) * per_second - 1
