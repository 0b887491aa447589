"""Maps in columns: to code a list of pairs, in the store two lists side by side.

Two plain lists are read without an object per pair, and any reader of a segment understands them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from meander.processor import Variable
from meander.processor.declare import KEY, VALUE


def never_null(series: pl.Series) -> pl.Series:
    """A column of lists without nulls: a row that was written before the column was has an empty one."""
    if not isinstance(series.dtype, pl.List) or series.null_count() == 0:
        return series
    missing = series.is_null().to_numpy()
    empty = pl.Series(series.name, [[]], dtype=series.dtype)
    return pl.concat([series, empty]).gather(np.where(missing, len(series), np.arange(len(series))))


def from_stored(name: str, columns: Mapping[str, pl.Series], variable: Variable) -> pl.Series:
    if variable.kind != "map":
        return columns[name]
    keys, values = columns[f"{name}.{KEY}"], columns[f"{name}.{VALUE}"]
    flat = pl.DataFrame([_flat(keys).alias(KEY), _flat(values).alias(VALUE)]).to_struct("")
    return listed(name, flat, keys.list.len().to_numpy(), variable.dtype)


def to_stored(series: pl.Series, name: str, variable: Variable) -> list[pl.Series]:
    if variable.kind != "map":
        return [series.alias(name)]
    sizes, flat = series.list.len().to_numpy(), _flat(series)
    pairs = zip((KEY, VALUE), variable.types, strict=True)
    return [listed(f"{name}.{field}", flat.struct.field(field), sizes, pl.List(dtype)) for field, dtype in pairs]


def listed(name: str, flat: pl.Series, sizes: npt.NDArray[np.integer], dtype: pl.DataType) -> pl.Series:
    """Values to lists of these sizes, one after the other."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    bounds = pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets)])
    values = flat.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    return pl.Series(name, pl.from_arrow(pa.LargeListArray.from_arrays(bounds, values)), dtype=dtype)


def _flat(lists: pl.Series) -> pl.Series:
    return lists.filter(lists.list.len() > 0).explode()
