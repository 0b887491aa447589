"""The source that reads a folder of Parquet, JSON-lines or CSV files, each file once, in order of arrival.

This is its description. ``file_discovery`` (driver) finds the files, ``file_splits`` (driver) cuts them into splits; ``file_rows`` and
``text_rows`` (task) read one. Guarantees: every file that is in the folder and stays unchanged is taken exactly once; a file that
vanishes or changes after it was decided is an error, never other rows; a split reads the same rows every time.

- A file must be complete when it appears (write under a name that starts with "." or "_", then rename), or be left alone for
  ``settle`` seconds: younger files are not taken, except by ``process_available``, which says that all input is complete and takes
  what is in the folder when it is called.
- Names that start with "." or "_" and everything that is not a regular file are ignored; subfolders are not read. A name is
  taken once: a new file under the name of one that was taken is not read.
- A folder may move between two runs: names are kept relative to it. A taken file stays taken; a
  file that was taken in part is continued if its size and modification time are the same (``mv``
  and ``cp -p`` keep them).
- With ``after="archive"`` a file goes into the subfolder ``_archive`` when its epoch is committed
  and published, never earlier; after a crash in between, at the next start. An archived file is
  never overwritten: a second file of the same name stays where it is.
- Columns that are not in the schema are not read. A column missing from a JSON object, a CSV header
  or a Parquet file is null if its name is in ``optional``; otherwise the row (JSON) or the file
  (CSV, Parquet) is a dead letter.
- Large Parquet files are cut at row groups, large JSON and CSV files at fixed byte positions. Cuts depend on the file and on
  the source's own limits, never on parallelism. CSV records are lines: a line break inside quotes is not supported.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from meander.connect import file_rows
from meander.connect.file_discovery import scan
from meander.connect.file_rows import FORMATS
from meander.connect.file_splits import ARCHIVE, FilesCursor, Folder, Limits
from meander.connect.schema_text import TYPES, as_columns
from meander.connect.source import Batch
from meander.errors import ConfigError, FlowError
from meander.familiar.values import named, no_path
from meander.plan.schemas import did_you_mean
from meander.stored import stored

_PYTHON: dict[object, str] = {int: "long", float: "double", bool: "boolean", bytes: "binary"}


@stored("files")
@dataclass(frozen=True)
class FilesSource:
    """A folder of files of one format and one schema."""

    path: str
    format: str
    columns: tuple[tuple[str, pl.DataType], ...]
    limits: Limits
    settle: float
    optional: tuple[str, ...]
    archive: bool = False

    def schema(self) -> pl.Schema:
        return pl.Schema(self.columns)

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> FilesCursor:
        partial = offset.get("partial")
        folder = Folder(self.path, self.format, self.limits, self.settle, self.archive)
        return FilesCursor(folder, partial, seen, throttle=throttle)

    def read(self, payload: dict[str, Any]) -> Batch:
        return file_rows.read(self.path, self.format, self.schema(), frozenset(self.optional), payload)

    def describe(self) -> str:
        return f"files {self.format} {self.path}{', archived afterwards' if self.archive else ''}"

    def canonical(self) -> str:
        return f"files {self.format}, optional {sorted(self.optional)}"

    def input(self) -> str:
        return f"{self.describe()}, {self.limits}, settle {self.settle}"

    def absent_as_null(self, columns: Collection[str]) -> FilesSource:
        return replace(self, optional=tuple(sorted({*self.optional, *columns})))


def files(
    path: str | os.PathLike[str],
    format: str = "parquet",
    schema: Any = None,
    max_files_per_epoch: int | None = None,
    max_rows_per_epoch: int | None = None,
    max_bytes_per_epoch: int | None = None,
    settle: float = 1.0,
    optional: Sequence[str] = (),
    after: str = "keep",
) -> FilesSource:
    """A folder of ``"parquet"``, ``"json"`` (one object per line) or ``"csv"`` (with a header) files; subfolders are not read.

    ``schema`` maps columns to types ("string", "double", "long", "timestamp", … or Polars types),
    or is what Spark takes: text such as ``"customer string, amount double"`` or a StructType. For
    Parquet it may be left out and is then the first file's. Only these columns are read. Limits
    bound one epoch; files younger than ``settle`` seconds wait. A JSON field that is absent makes a
    bad row, and a column that is absent a bad CSV or Parquet file, unless its name is in
    ``optional``: then it is null. An explicit null is a null. ``after="archive"`` moves a file into
    the subfolder ``_archive`` when its epoch is committed and published. This keeps the folder
    small and the search for new files fast, but other readers no longer find all files in the
    folder. You may delete files in the archive.

    Example: ``md.files("in/", format="json", schema={"customer": "string", "amount": "double"})``.
    """
    text = _one_folder(path)
    if "://" in text:
        raise ConfigError(f"files({text!r}): only folders of a mounted file system are read; mount it, or use spark_stream")
    if format not in FORMATS:
        raise ConfigError(f"files({text!r}, format={format!r}): unknown format; there are {', '.join(FORMATS)}")
    folder = os.path.abspath(text)
    if not os.path.isdir(folder):
        raise ConfigError(_no_folder(text, folder))
    for name, limit in (("files", max_files_per_epoch), ("rows", max_rows_per_epoch), ("bytes", max_bytes_per_epoch)):
        if limit is not None and limit < 1:
            raise ConfigError(f"files({text!r}, max_{name}_per_epoch={limit}): must be at least 1, or None for no limit")
    schema = _first_schema(folder, text, format) if schema is None else as_columns(schema)
    columns = tuple((name, _dtype(name, kind, format)) for name, kind in schema.items())
    if not columns:
        raise FlowError(f"files({text!r}): the schema has no columns; give at least one")
    unknown = set(optional) - set(schema)
    if unknown:
        raise FlowError(f"files({text!r}): optional columns {sorted(unknown)} are not in the schema; it has {', '.join(schema)}")
    limits = Limits(max_files_per_epoch, max_rows_per_epoch, max_bytes_per_epoch)
    return FilesSource(folder, format, columns, limits, float(settle), tuple(optional), _archives(after, folder, text))


def _one_folder(path: object) -> str:
    if isinstance(path, list | tuple | set):
        shown = " and ".join(f"md.files({one!r}, ...)" for one in list(path)[:2]) or "md.files('in/', ...)"
        raise ConfigError(f"files: one folder is read, and {named(path)} is given; make a source of each, {shown}, and write a.union(b)")
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(no_path("files", path, "md.files('in/')"))
    return os.fspath(path)


def _no_folder(text: str, folder: str) -> str:
    parent = os.path.dirname(text) or "."
    if os.path.isfile(folder):
        return f"files({text!r}): this is a file, and a folder is needed: all files in it are read, and those that come; write {parent!r}"
    if set("*?[") & set(text):
        return (
            f"files({text!r}): patterns are not understood, a folder is needed: write {parent!r}. All its files are read but those whose "
            "names begin with '.' or '_'; keep other files out of it"
        )
    return f"files({text!r}): {folder} is not a folder; create it, or fix the path"


def _archives(after: str, folder: str, text: str) -> bool:
    if after == "delete":  # of a row or a file that cannot be read the dead letter holds the beginning at most
        raise ConfigError(f"files({text!r}, after='delete'): input is not deleted, since bad rows are whole only there; archive it")
    if after not in ("keep", "archive"):
        raise ConfigError(f"files({text!r}, after={after!r}): it is 'keep' or 'archive'")
    if after == "archive" and not os.access(folder, os.W_OK):
        raise ConfigError(f"files({text!r}, after='archive'): files cannot be moved out of {folder}; allow writing there, or keep them")
    return after == "archive"


def _first_schema(folder: str, text: str, format: str) -> Mapping[str, Any]:
    if format != "parquet":
        raise FlowError(f"files({text!r}, format={format!r}): give schema={{column: type}}; {format} files do not say their types")
    places = [place for place in (folder, os.path.join(folder, ARCHIVE)) if os.path.isdir(place)]
    found = sorted((stat.st_mtime_ns, os.path.join(place, name)) for place in places for name, stat in scan(place, set()))
    for _, path in found:
        try:
            return pl.read_parquet_schema(path)
        except Exception:  # not Parquet, or broken: the next one may tell
            continue
    raise FlowError(f"files({text!r}): there is no Parquet file to take the schema from; give schema={{column: type}}")


def _dtype(name: str, kind: Any, format: str) -> pl.DataType:
    if isinstance(kind, str):
        if kind.lower() not in TYPES:
            known = ", ".join(TYPES)
            raise FlowError(f"column {name!r}: unknown type {kind!r}; there are {known}, and every Polars type{did_you_mean(kind, TYPES)}")
        dtype = TYPES[kind.lower()]
    elif isinstance(kind, pl.DataType):
        dtype = kind
    elif isinstance(kind, type) and issubclass(kind, pl.DataType):
        dtype = kind()
    else:
        raise FlowError(f"column {name!r}: {kind!r} is not a type; give a name such as {_PYTHON.get(kind, 'string')!r} or a Polars type")
    file_rows.check_readable(name, dtype, format)
    return dtype
