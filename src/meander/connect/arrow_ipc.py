"""The staged form of the sinks whose readers are in the driver: Arrow IPC, written in the task, read at publication.

Owned by the memory, console and foreach_batch sinks; the engine calls ``encode`` through them. Guarantees that
``decode(encode(frame))`` equals ``frame``, types included.
"""

from __future__ import annotations

import io

import polars as pl

from meander.connect.sink import Staged


def encode(frame: pl.DataFrame) -> bytes:
    """The frame as one Arrow IPC file; compressed, since it crosses the store once in each direction."""
    out = io.BytesIO()
    frame.write_ipc(out, compression="lz4")
    return out.getvalue()


def decode(data: bytes) -> pl.DataFrame:
    return pl.read_ipc(io.BytesIO(data))


def gather(files: list[Staged]) -> pl.DataFrame | None:
    """All rows of one epoch in slot order, so that the same epoch looks the same whoever publishes it."""
    frames = [decode(data) for staged in sorted(files, key=lambda s: s.file.slot) if (data := staged.get())]
    return pl.concat(frames, how="vertical", rechunk=False) if frames else None


def read_staged(data: bytes) -> pl.DataFrame:
    """The rows of a staged file of any sink that has some: Parquet or Arrow."""
    return pl.read_parquet(io.BytesIO(data)) if data[:4] == b"PAR1" else decode(data)
