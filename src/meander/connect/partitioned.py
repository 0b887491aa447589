"""The Parquet sink with one folder per value of some columns, Hive style: ``out/dt=2026-03-01/hm=10%3A05/part-….parquet``.

A task stages one file per epoch and slot, as every sink does: the Parquet files of all partitions, one after the other, and at the end
which of them belongs where. Publication writes each into its folder. Names are made of epoch and slot, as without partitions, so it
can be done again after a crash at any point. Readers that know Hive's folders (Polars, DuckDB, Spark) find the columns in the names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import polars as pl

from meander.connect.parquet import ParquetSink, encode_parquet, publish_one
from meander.connect.sink import Staged
from meander.durable import sync_folder
from meander.errors import BadInput, ConfigError, Corrupted, FlowError

_NULL = "__HIVE_DEFAULT_PARTITION__"
_LENGTH = 8
_LONGEST_NAME = 255
"""What file systems take."""


@dataclass(frozen=True)
class PartitionedParquetSink(ParquetSink):
    """One file per epoch, slot and partition that has rows. The columns that make the folders are not in the files."""

    partition_by: tuple[str, ...] = ()

    def check(self, schema: pl.Schema, name: str) -> None:
        """FlowError where the columns cannot make folders; called when the flow is written."""
        for column in self.partition_by:
            if column not in schema:
                raise FlowError(f"sink {name!r}: partition_by: there is no column {column!r}; columns are {', '.join(schema)}")
            dtype = schema[column]
            if not (dtype.is_integer() or dtype.is_temporal() or isinstance(dtype, pl.String | pl.Boolean)):
                raise FlowError(
                    f"sink {name!r}: partition_by: column {column!r} is {dtype}; a folder's name can be of text, integers, booleans, "
                    "dates and times: cast it first"
                )
        if len(self.partition_by) == len(schema):
            raise FlowError(f"sink {name!r}: partition_by: all columns are in the folders' names, and none is left for the files")

    def encode(self, frame: pl.DataFrame) -> bytes:
        pieces: list[bytes] = []
        index: list[tuple[str, int]] = []
        for part in frame.partition_by(self.partition_by, maintain_order=True):
            data = encode_parquet(part.drop(self.partition_by))
            pieces.append(data)
            index.append((self._folder_of(part), len(data)))
        described = json.dumps(index).encode()
        return b"".join([*pieces, described, len(described).to_bytes(_LENGTH, "big")])

    def publish(self, epoch: int, files: list[Staged]) -> None:
        root = Path(self.path)
        touched: set[Path] = set()
        for staged in files:
            for folder, piece in self._pieces(staged):
                place = root / folder
                place.mkdir(parents=True, exist_ok=True)
                publish_one(place / f"part-{epoch:010d}-{staged.file.slot:04d}.parquet", piece, root)
                # Those above it, too: another replica may have made the folder, and not have come to syncing it.
                touched.update(one for one in (place, *place.parents) if one == root or root in one.parents)
        for place in sorted(touched, reverse=True):
            sync_folder(place)

    def describe(self) -> str:
        return f"parquet {self.path}, by {', '.join(self.partition_by)}"

    def canonical(self) -> str:
        return f"parquet by {list(self.partition_by)}"

    def _pieces(self, staged: Staged) -> list[tuple[str, Staged]]:
        data = memoryview(staged.get())
        end = len(data) - _LENGTH
        described = end - int.from_bytes(data[end:], "big")
        if end < 0 or described < 0:
            raise Corrupted(f"staged file '{staged.file.name}' is cut off: {len(data)} bytes; report this")
        found, at = [], 0
        for folder, size in json.loads(bytes(data[described:end])):
            found.append((folder, _piece(staged, bytes(data[at : at + size]))))
            at += size
        return found

    def _folder_of(self, part: pl.DataFrame) -> str:
        values = part.select(pl.col(self.partition_by).cast(pl.String)).row(0)
        names = [f"{quote(column, safe='')}={_name(value)}" for column, value in zip(self.partition_by, values, strict=True)]
        for name, column in zip(names, self.partition_by, strict=True):
            if len(name) > _LONGEST_NAME:
                raise BadInput(f"parquet({self.path!r}): a value of {column!r} is too long for a folder's name: {name[:60]}…")
        return "/".join(names)


def parquet(path: str | os.PathLike[str], partition_by: str | Sequence[str] | None = None) -> ParquetSink:
    """A sink that writes Parquet files into a folder, each visible only when its epoch is committed.

    ``partition_by`` puts rows into folders by the values of these columns: with ``md.parquet("out/", partition_by=["day"])`` a row is in
    ``out/day=2026-03-01/``, and ``pl.read_parquet("out/", hive_partitioning=True)`` has the column again.

    A start publishes the last epoch again: where its files were moved away, they come back under the same names.
    """
    text = os.fspath(path)
    if "://" in text:
        raise ConfigError(f"parquet({text!r}): only folders of this machine's file systems are supported; mount it, or use foreach_batch")
    if partition_by is None:
        return ParquetSink(os.path.abspath(text))
    columns: tuple[object, ...] = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    names = tuple(column for column in columns if isinstance(column, str) and column)
    if not names or names != columns or len(set(names)) < len(names):
        raise FlowError(f"parquet({text!r}, partition_by={partition_by!r}): give one or more columns, by name, each once")
    return PartitionedParquetSink(os.path.abspath(text), names)


def _piece(staged: Staged, data: bytes) -> Staged:
    return replace(staged, get=lambda: data, local=None)


def _name(value: str | None) -> str:
    """A value as a part of a path; what a path gives a meaning to is written as %XX."""
    return _NULL if value is None else quote(value, safe=" ,+@()~!&$;")
