"""The key hash: 64 bits over a canonical encoding, the same in every process, version and machine.

A key's hash decides its key group for ever, so this file is a format: changing a constant orphans every
stored row. ``tests/golden/hashes.json`` holds values that must never change.

Encoding, per key column:

- integers, booleans, dates, times and durations: their value as int64 (datetimes and durations in microseconds)
- floats: the bits of the float64, with -0.0 as 0.0 and every NaN as one NaN
- strings and binary: the UTF-8 bytes in little-endian words of 8, the last one zero-padded. The first 8 words one after the other; of
  those behind them each by itself, with its place, and their sum; then the length
- structs: their fields like several columns, from a constant on. The names of fields do not count
- null: a constant

Several columns are combined from left to right. The key group is the hash's top bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_INTEGER = np.uint64(0x2545F4914F6CDD1D)
_FLOAT = np.uint64(0xD6E8FEB86659FD93)
_TEXT = np.uint64(0xA0761D6478BD642F)
_STRUCT = np.uint64(0x8EBC6AF09C88C6E3)
_COMBINE = np.uint64(0xE7037ED1A0B428DB)
_IN_ORDER = 64
"""The number of first bytes of a text that are hashed word by word; the rest is hashed at once, so
that the time for a long key follows its length."""
_CANONICAL_NAN = np.uint64(0x7FF8000000000000)


def mix(words: Hashes) -> Hashes:
    """Murmur3's 64-bit finaliser, on a copy: every input bit reaches every output bit."""
    h = words ^ (words >> np.uint64(33))
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    return h


def hash_series(series: pl.Series) -> Hashes:
    """The hash of every value of one column."""
    dtype = series.dtype
    if dtype == pl.Null:
        return np.full(len(series), _NULL)
    if dtype in (pl.String, pl.Binary):
        hashes = _hash_text(series)
    elif dtype.is_float():
        hashes = _hash_floats(series)
    elif dtype.is_integer() or dtype.is_temporal() or dtype == pl.Boolean:
        hashes = mix(_integers(series) + _INTEGER)
    elif isinstance(dtype, pl.Struct):
        hashes = np.full(len(series), _STRUCT)
        for field in dtype.fields:
            hashes = mix(hashes * _COMBINE + hash_series(series.struct.field(field.name)))
    else:
        raise TypeError(f"a column of type {dtype} cannot be hashed")
    if series.null_count():
        hashes[series.is_null().to_numpy()] = _NULL
    return hashes


def hash_keys(keys: pl.DataFrame) -> Hashes:
    """The hash of every row of the key columns."""
    columns = keys.get_columns()
    hashes = hash_series(columns[0])
    for column in columns[1:]:
        hashes = mix(hashes * _COMBINE + hash_series(column))
    return hashes


def key_groups_of(hashes: Hashes, count: int) -> npt.NDArray[np.int64]:
    """The key group of every hash; ``count`` is a power of two."""
    return (hashes >> np.uint64(65 - count.bit_length())).astype(np.int64) if count > 1 else np.zeros(len(hashes), np.int64)


def in_groups(hashes: Hashes, groups: int, count: int) -> npt.NDArray[np.bool_]:
    """A mask of the hashes that belong to a set of key groups, given as bits."""
    members = np.array([bool(groups >> group & 1) for group in range(count)])
    return members[key_groups_of(hashes, count)]


def groups_present(hashes: Hashes, count: int) -> int:
    """The key groups that hashes (ascending) belong to, as bits."""
    edges = np.concatenate([[0], np.searchsorted(hashes, key_group_bounds(count)), [len(hashes)]])
    return sum(1 << group for group in np.flatnonzero(np.diff(edges)).tolist())


def spread_within_groups(hashes: Hashes, finer: Hashes) -> Hashes:
    """Hashes in the same key groups, told apart by ``finer`` ones: the top 16 bits of the first above the top 48 of the second."""
    return (hashes & np.uint64(0xFFFF << 48)) | (finer >> np.uint64(16))


def key_group_bounds(count: int) -> Hashes:
    """The first hash of every key group but the first: where a sorted run is cut into key groups."""
    return np.arange(1, count, dtype=np.uint64) << np.uint64(65 - count.bit_length())


def _integers(series: pl.Series) -> Hashes:
    dtype = series.dtype
    if isinstance(dtype, pl.Datetime | pl.Duration):
        series = series.dt.cast_time_unit("us")
    physical = series.to_physical()
    if physical.dtype == pl.UInt64:
        return physical.fill_null(0).to_numpy().copy()
    return physical.cast(pl.Int64).fill_null(0).to_numpy().astype(np.int64).view(np.uint64)


def _hash_floats(series: pl.Series) -> Hashes:
    values = series.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # + 0.0 turns -0.0 into 0.0
    bits = values.view(np.uint64).copy()
    bits[np.isnan(values)] = _CANONICAL_NAN
    return mix(bits + _FLOAT)


def _hash_text(series: pl.Series) -> Hashes:
    """One round per word of 8 bytes, over all strings that are long enough, and one for all that is behind: cost follows the bytes."""
    binary = series.cast(pl.Binary).fill_null(b"")
    array = binary.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    begin, lengths = offsets[:-1], np.diff(offsets)
    raw = np.frombuffer(data, np.uint8)[: offsets[-1]] if data is not None and len(offsets) else np.zeros(0, np.uint8)
    padded = np.concatenate([raw, np.zeros(8, np.uint8)])
    words = np.ndarray(shape=(len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
    hashes = np.full(len(array), _TEXT)
    active = np.flatnonzero(lengths > 0)
    done = 0
    while len(active) and done < _IN_ORDER:
        left = lengths[active] - done
        word = words[begin[active] + done]
        short = left < 8
        if short.any():
            word[short] &= (np.uint64(1) << (left[short].astype(np.uint64) * np.uint64(8))) - np.uint64(1)
        hashes[active] = mix((hashes[active] ^ word) * _COMBINE + np.uint64(done + 1))
        done += 8
        active = active[left > 8]
    if len(active):
        behind = _sums_of_words(words, begin[active] + done, lengths[active] - done)
        hashes[active] = mix((hashes[active] ^ behind) * _COMBINE + np.uint64(done + 1))
    return mix(hashes + lengths.astype(np.uint64))


def _sums_of_words(words: Hashes, begin: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    """For stretches of bytes, none empty: the sum of their words, each mixed with its place."""
    counts = (lengths + 7) // 8
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    places = np.arange(counts.sum()) - np.repeat(starts, counts)
    word = words[np.repeat(begin, counts) + 8 * places]
    ends, left = starts + counts - 1, lengths - 8 * (counts - 1)
    short = left < 8
    word[ends[short]] &= (np.uint64(1) << (left[short].astype(np.uint64) * np.uint64(8))) - np.uint64(1)
    sums: Hashes = np.add.reduceat(mix((word ^ mix(places.astype(np.uint64) + _TEXT)) * _COMBINE), starts)
    return sums
