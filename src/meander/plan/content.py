"""A digest of a frame's content: equal columns, types and values in equal order give equal text, in
every process and version.

Neither the text of the values nor the bytes of a file would do. Text does not tell a null from a
NaN. Arrow files of equal frames differ in the bytes under nulls, in unused bytes, and in the chunks
of a column.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

_ROWS = 1 << 20
"""Rows that are digested at once, so that the memory needed does not grow with the table. Part of
the format."""


def content_digest(frame: pl.DataFrame) -> str:
    """Hex over all values of a frame.

    >>> frame = pl.DataFrame({"k": ["a", None], "v": [[1.0], [float("nan"), None]]})
    >>> content_digest(frame) == content_digest(pl.concat([frame[:1], frame[1:]]))
    True
    >>> content_digest(frame) == content_digest(frame.with_columns(pl.col("v").list.eval(pl.element().fill_nan(None))))
    False
    """
    found = hashlib.sha256()
    for name, dtype in frame.schema.items():
        found.update(f"{len(name)} {name} {dtype} {frame.height}".encode())
        for start in range(0, frame.height, _ROWS):
            _feed(found, frame.get_column(name)[start : start + _ROWS].to_arrow(compat_level=pl.CompatLevel.oldest()))
    return found.hexdigest()


def _feed(found: Any, values: pa.Array) -> None:
    """Values without what stands in the place of nulls, before their array and behind it."""
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    found.update(f"{len(values)} {values.null_count}".encode())
    if values.null_count:
        found.update(np.packbits(pc.is_valid(values).to_numpy(zero_copy_only=False)).tobytes())
        values = values.drop_null()
    kind = values.type
    if not len(values):
        return
    if pa.types.is_struct(kind):
        for field in range(kind.num_fields):
            _feed(found, values.field(field))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found.update(pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
        _feed(found, values.flatten())
    elif pa.types.is_fixed_size_list(kind):
        _feed(found, values.flatten())
    elif pa.types.is_boolean(kind):
        found.update(np.packbits(values.to_numpy(zero_copy_only=False)).tobytes())
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
        found.update(np.diff(bounds).tobytes())
        if data is not None:
            found.update(memoryview(data)[int(bounds[0]) : int(bounds[-1])])
    else:
        width = kind.bit_width // 8
        found.update(memoryview(values.buffers()[1])[values.offset * width : (values.offset + len(values)) * width])
