"""The Parquet sink with one folder per value of some columns, Hive style: ``out/dt=2026-03-01/hm=10%3A05/part-….parquet``.

A task stages one file per epoch and slot, as every sink does: the Parquet files of all partitions, one after the other, their values,
and at the end which of them belongs where. Publication writes each into its folder. Names are made of epoch and slot, as without
partitions, so it can be done again after a crash at any point. Readers that know Hive's folders (Polars, DuckDB, Spark) find the columns
in the names.

Characters with a meaning in paths are written as %XX, and null as ``__HIVE_DEFAULT_PARTITION__``. A
text equal to that name is written with %5F in front: Spark and DuckDB read it as text, Polars as
null. Rows whose value cannot be a folder's name are dead letters: the empty text, on which Spark
fails, and text that is too long.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import polars as pl

from meander.connect import arrow_ipc
from meander.connect.parquet import ParquetSink, encode_parquet, publish_one
from meander.connect.sink import Staged
from meander.durable import sync_folder
from meander.errors import ConfigError, Corrupted, FlowError
from meander.familiar.values import no_path
from meander.state.formats import PARTITIONED
from meander.stored import stored

_NULL = "__HIVE_DEFAULT_PARTITION__"
_LENGTH = 8
_LONGEST_NAME, _LONGEST_PATH = 255, 4095
"""Bytes that file systems take."""


@stored("partitioned_parquet")
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
            of_time = dtype.is_temporal() and not isinstance(dtype, pl.Duration)
            if not (dtype.is_integer() or of_time or isinstance(dtype, pl.String | pl.Boolean)):
                raise FlowError(
                    f"sink {name!r}: partition_by: column {column!r} is {dtype}; a folder's name can be of text, integers, booleans, "
                    "dates and times: cast it first"
                )
        if len(self.partition_by) == len(schema):
            raise FlowError(f"sink {name!r}: partition_by: all columns are in the folders' names, and none is left for the files")

    def refused(self, frame: pl.DataFrame) -> pl.Series | None:
        texts = [name for name in self.partition_by if isinstance(frame.schema[name], pl.String)]
        if not texts:
            return None
        # A byte may become three. Where even that fits, nothing else needs to be looked at.
        size = {name: pl.col(name).str.len_bytes().fill_null(len(_NULL)) * 3 + len(quote(name, safe="")) + 1 for name in texts}
        others = sum(len(quote(name, safe="")) + 2 * len(_NULL) for name in self.partition_by)
        long = [*(one > _LONGEST_NAME for one in size.values()), pl.sum_horizontal(*size.values()) > self._room - others]
        doubtful = frame.select(pl.any_horizontal(*long, *(pl.col(name).eq_missing("") for name in texts))).to_series()
        if not doubtful.any():
            return None
        parts = frame.filter(doubtful).select(pl.col(self.partition_by).cast(pl.String))
        why = {values: self._refused(values) for values in parts.unique().iter_rows()}
        reasons = iter([why[values] for values in parts.iter_rows()])
        return pl.Series([next(reasons) if is_doubtful else None for is_doubtful in doubtful], dtype=pl.String)

    def encode(self, frame: pl.DataFrame) -> bytes:
        # By folder, and not by value: whatever values may look alike in a path, a folder has one file of an epoch and slot.
        parts: dict[str, list[pl.DataFrame]] = {}
        for part in frame.partition_by(self.partition_by, maintain_order=True):
            parts.setdefault(self._folder_of(part), []).append(part)
        pieces = [encode_parquet(pl.concat(part).drop(self.partition_by)) for part in parts.values()]
        values = arrow_ipc.encode(pl.concat(part[0].select(self.partition_by).head(1) for part in parts.values()))
        index = {"pieces": [(folder, len(data)) for folder, data in zip(parts, pieces, strict=True)], "values": len(values)}
        described = PARTITIONED.write(index)
        return b"".join([*pieces, values, described, len(described).to_bytes(_LENGTH, "big")])

    def publish(self, epoch: int, files: list[Staged]) -> None:
        root = Path(self.path)
        if files and not root.is_dir():  # never create it: a file system may be mounted there at other times
            raise FileNotFoundError(errno.ENOENT, "the output folder is not there", str(root))
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
        try:
            return [(folder, _piece(staged, data)) for folder, data in _split(staged.get(), staged.file.name)[0]]
        except ValueError as error:
            raise Corrupted(f"staged file '{staged.file.name}' is cut off: {error}; report this") from error

    @property
    def _room(self) -> int:
        """Bytes of a path that are left for folders when the sink's own folder and a file's name are in it."""
        return _LONGEST_PATH - len(os.fsencode(self.path)) - len("//part-0000000000-0000.parquet")

    def _folder_of(self, part: pl.DataFrame) -> str:
        return "/".join(self._names(part.select(pl.col(self.partition_by).cast(pl.String)).row(0)))

    def _names(self, values: Sequence[str | None]) -> list[str]:
        return [f"{quote(column, safe='')}={_name(value)}" for column, value in zip(self.partition_by, values, strict=True)]

    def _refused(self, values: tuple[str | None, ...]) -> str | None:
        """Why these values cannot be folders' names; None where they can."""
        names = self._names(values)
        for column, value, name in zip(self.partition_by, values, names, strict=True):
            if value == "":
                return f"the value of '{column}' is empty, which cannot be a folder's name: fill it in before the sink"
            if len(name) > _LONGEST_NAME:
                return f"the value of '{column}' is too long for a folder's name: '{name[:60]}…' has {len(name)} bytes of {_LONGEST_NAME}"
        size = len("/".join(names))
        return None if size <= self._room else f"the values of partition_by are too long for a path: {size} bytes of {self._room}"


def parquet(path: str | os.PathLike[str], partition_by: str | Sequence[str] | None = None) -> ParquetSink:
    """A sink that writes Parquet files into a folder, each visible only when its epoch is committed.

    ``partition_by`` puts rows into folders by the values of these columns: with ``md.parquet("out/", partition_by=["day"])`` a row is in
    ``out/day=2026-03-01/``, and ``pl.read_parquet("out/", hive_partitioning=True)`` has the column again. Rows whose value cannot be a
    folder's name (empty text, or more than 255 bytes with the column's name and ``%XX`` for each byte that is not ASCII) are dead letters.

    A start publishes the last epoch again: where its files were moved away, they come back under the same names.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(no_path("parquet", path, "md.parquet('out/')"))
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


def is_partitioned(data: bytes) -> bool:
    """Whether these are the bytes of a staged file of this sink: they begin as Parquet, and do not end so."""
    return data[:4] == b"PAR1" != data[-4:]


def read_partitioned(data: bytes) -> pl.DataFrame:
    """The rows of a staged file, each with the values that its folder stands for."""
    pieces, encoded = _split(data, "of an epoch that is tried")
    values = arrow_ipc.decode(encoded)
    frames = [pl.read_parquet(io.BytesIO(piece)) for _, piece in pieces]
    return pl.concat(frame.join(values[number], how="cross") for number, frame in enumerate(frames))


def _split(data: bytes, name: str) -> tuple[list[tuple[str, bytes]], bytes]:
    """The folders and their files, and the values that each folder stands for. ValueError where something is missing."""
    view = memoryview(data)
    end = len(view) - _LENGTH
    described = end - int.from_bytes(view[max(end, 0) :], "big")
    if end < 0 or described < 0:
        raise ValueError(f"{len(view)} bytes")
    index = PARTITIONED.read(bytes(view[described:end]), name)
    found, at = [], 0
    for folder, size in index["pieces"]:
        found.append((folder, bytes(view[at : at + size])))
        at += size
    return found, bytes(view[at : at + index["values"]])


def _piece(staged: Staged, data: bytes) -> Staged:
    return replace(staged, get=lambda: data, local=None)


def _name(value: str | None) -> str:
    """A value as a part of a path. Characters with a meaning in paths are written as %XX, and so is
    the first character of a text that would read as null.

    >>> _name("10:05"), _name(None), _name("__HIVE_DEFAULT_PARTITION__")
    ('10%3A05', '__HIVE_DEFAULT_PARTITION__', '%5F_HIVE_DEFAULT_PARTITION__')
    """
    if value is None:
        return _NULL
    return f"%5F{_NULL[1:]}" if value == _NULL else quote(value, safe=" ,+@()~!&$;")
