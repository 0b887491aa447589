"""A number for rows, by which replicas compare what they have computed.

It is made of the values alone, by the hash of keys (``state.hashing``) and not by that of Polars,
which is another one in other versions: replicas of two versions that compute equal rows get equal
numbers. Where a version computes another float, the rows are others, and that is divergence.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from meander.state.hashing import Hashes, hash_series, mix
from meander.state.segment import DELETED

_COMBINE = np.uint64(0xD1B54A32D192ED03)
_MANY = 1024
_LIST = np.uint64(0x8CB92BA72F3D8DD7)


def digest_of(frame: pl.DataFrame) -> int:
    """A number for rows in any order and however they are divided: those of parts add up to that of
    the whole.

    >>> rows = pl.DataFrame({"k": [1, 2, 3], "v": ["a", None, "c"]})
    >>> digest_of(rows) == digest_of(rows[::-1])
    True
    >>> digest_of(rows) == (digest_of(rows[:1]) + digest_of(rows[1:])) % (1 << 64)
    True
    >>> digest_of(rows) == digest_of(rows.with_columns(v=pl.lit("a")))
    False
    >>> some = rows.with_columns(__deleted=pl.Series([False, True, False]))
    >>> digest_of(some) == (digest_of(some[:2]) + digest_of(rows[2:])) % (1 << 64)
    True
    >>> digest_of(some) == digest_of(rows)
    False
    >>> digest_of(some) == digest_of(some.select(reversed(some.columns)))  # slots order columns as they write them first
    True
    """
    if DELETED in frame.columns:  # it is there where a slot has deleted something: rows that were not are the same with and without it
        deleted = frame.get_column(DELETED)
        gone = _hash_sum(frame.filter(deleted))
        return (gone + digest_of(frame.filter(~deleted).drop(DELETED))) % (1 << 64)
    if frame.height == 0 or frame.width == 0:
        return frame.height
    return _hash_sum(frame)


def _hash_sum(frame: pl.DataFrame) -> int:
    if frame.height == 0:
        return 0
    hashes = np.zeros(frame.height, np.uint64)
    for name in sorted(frame.columns):
        hashes = mix(hashes * _COMBINE + _hashes(frame.get_column(name)))
    return int(hashes.sum(dtype=np.uint64))


def _hashes(series: pl.Series) -> Hashes:
    """The hash of every value: also of types that keys cannot have."""
    dtype = series.dtype
    if isinstance(dtype, pl.List | pl.Array):
        return _of_lists(series.arr.to_list() if isinstance(dtype, pl.Array) else series)
    if isinstance(dtype, pl.Struct):
        hashes = np.full(len(series), _COMBINE)
        for field in dtype.fields:
            hashes = mix(hashes * _COMBINE + _hashes(series.struct.field(field.name)))
        return _with_nulls(hashes, series)
    if dtype.is_decimal() or dtype in (pl.Int128, pl.UInt128) or isinstance(dtype, pl.Categorical | pl.Enum):
        series = series.cast(pl.String)
    if series.dtype in (pl.String, pl.Binary) and len(series) >= _MANY:
        encoded = series.to_arrow(compat_level=pl.CompatLevel.oldest()).dictionary_encode()
        words = pl.Series(encoded.dictionary, dtype=series.dtype)
        if 2 * len(words) <= len(series):  # of texts that come often each one is hashed once
            places = encoded.indices.fill_null(len(words)).to_numpy()
            by_word: Hashes = hash_series(words.extend(pl.Series([None], dtype=series.dtype)))
            by_row: Hashes = by_word[places]
            return by_row
    return hash_series(series)


def _of_lists(series: pl.Series) -> Hashes:
    """By the values in their order: each with its place, and their sum."""
    lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
    inside = _hashes(series.filter(series.list.len() > 0).explode())
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(len(inside)) - np.repeat(starts[:-1], lengths)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(mix(inside + mix(places.astype(np.uint64) + _LIST)), dtype=np.uint64)])
    hashes = mix(sums[starts[1:]] - sums[starts[:-1]] + lengths.astype(np.uint64) * _LIST)
    return _with_nulls(hashes, series)


def _with_nulls(hashes: Hashes, series: pl.Series) -> Hashes:
    if series.null_count():
        hashes[series.is_null().to_numpy()] = _LIST
    return hashes
