"""The texts of a Nexmark stream: names, places, channels with their addresses, and filler of any length.

Filler is cut out of one fixed text by (offset, length) without copying a byte: Polars' strings are views into buffers. All texts
are constants of this file, the same in every process and for every seed.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from meander.connect.generator import Draws

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

STATES = pl.Series("AZ CA ID OR WA WY".split())
CITIES = pl.Series("Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne".split(","))
_FIRST = "Peter Paul Luke John Saul Vicky Kate Julie Sarah Deiter Walter".split()
_LAST = "Shultz Abrams Spencer White Bartels Walton Smith Jones Noris".split()
NAMES = pl.Series([f"{first} {last}" for first in _FIRST for last in _LAST])
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
"""Channels beside the hot ones; one in ten of them has no id in its address."""
LONGEST = 100_000
"""The longest filler."""
_SHORTEST = 3
_POOL_BYTES = 1 << 20
_INLINE = 12  # Arrow keeps strings up to this length inside the view
_VIEW = np.dtype([("length", "<u4"), ("begin", "<u4"), ("buffer", "<u4"), ("offset", "<u4")])


class Filler:
    """A fixed text to cut strings from."""

    def __init__(self, stream: int, space: str) -> None:
        """``space`` stands for about every thirteenth letter; empty for letters only."""
        bits = Draws(stream, 0, np.arange(_POOL_BYTES, dtype=np.int64)).bits(0)
        letters = (ord("a") + below(bits, 26)).astype(np.uint8)
        if space:
            letters[(bits & np.uint64(0xFFFF)) < 65536 // 13] = ord(space)
        self._buffer = pa.py_buffer(letters.tobytes())
        # Every four bytes of the text as a number, wherever they begin.
        self._words = np.ndarray(shape=(_POOL_BYTES - 3,), dtype="<u4", buffer=self._buffer, strides=(1,))

    def cut(self, bits: U64, length: I64) -> pl.Series:
        """Strings of these lengths from random places, chosen by the upper half of the bits."""
        offset = below(bits, _POOL_BYTES - LONGEST)
        views = np.zeros(len(length), _VIEW)
        views["length"] = length
        views["begin"] = self._words[offset]
        views["offset"] = offset
        short = np.flatnonzero(length <= _INLINE)
        if len(short):
            self._inline(views, short, offset[short], length[short])
        return pl.Series(pl.from_arrow(pa.Array.from_buffers(pa.string_view(), len(length), [None, pa.py_buffer(views), self._buffer])))

    def _inline(self, views: npt.NDArray[np.void], rows: npt.NDArray[np.intp], offset: I64, length: I64) -> None:
        """Short strings are in their views: twelve bytes, zeros behind the end."""
        for word, field in enumerate(("begin", "buffer", "offset")):
            kept = np.clip(length - 4 * word, 0, 4).astype(np.uint64)
            mask = ((np.uint64(1) << (np.uint64(8) * kept)) - np.uint64(1)).astype(np.uint32)
            views[field][rows] = self._words[offset + 4 * word] & mask


def below(bits: U64, count: int | U64) -> I64:
    """Numbers from 0 to count - 1 from the upper half of the bits; counts are up to 2³²."""
    return (((bits >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


@lru_cache(maxsize=1)
def letters() -> Filler:
    return Filler(1, "")


@lru_cache(maxsize=1)
def words() -> Filler:
    return Filler(2, " ")


@lru_cache(maxsize=1)
def channels_and_urls() -> tuple[pl.Series, pl.Series]:
    """The hot channels first, then the others: names and addresses."""
    count = len(HOT_CHANNELS) + CHANNELS
    draws = Draws(3, 0, np.arange(count, dtype=np.int64))
    folders = Filler(4, "_")
    parts = [folders.cut(draws.bits(part), _SHORTEST + below(draws.bits(10 + part), 2)) for part in range(3)]
    frame = pl.DataFrame({"a": parts[0], "b": parts[1], "c": parts[2]}).select(
        pl.concat_str(pl.lit("https://www.nexmark.com/"), "a", pl.lit("/"), "b", pl.lit("/"), "c", pl.lit("/item.htm?query=1"))
    )
    named = (below(draws.bits(20), 10) > 0).tolist()
    numbers = range(-len(HOT_CHANNELS), CHANNELS)
    ends = [f"&channel_id={_channel_id(number)}" if number >= 0 and has else "" for number, has in zip(numbers, named, strict=True)]
    urls = frame.to_series() + pl.Series(ends)
    return pl.Series([*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]), urls


def _channel_id(number: int) -> int:
    """The number's 32 bits in reverse, as a signed number without its sign: neighbours get ids far apart."""
    mirrored = int(f"{number:032b}"[::-1], 2)
    return mirrored if mirrored < 1 << 31 else (1 << 32) - mirrored


@lru_cache(maxsize=1)
def four_digits() -> pl.Series:
    return pl.Series([f"{number:04d}" for number in range(10_000)])
