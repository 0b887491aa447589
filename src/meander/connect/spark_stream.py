"""Any streaming DataFrame as a source: Structured Streaming chooses the input, batch by batch.

Only the driver's description holds the DataFrame. A batch is written to files before its epoch
runs, and executors get a description that reads these files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from meander.connect.source import Batch, Choice, Cursor
from meander.errors import ConfigError, FlowError
from meander.stored import stored

_TYPES: dict[str, pl.DataType] = {
    "string": pl.String(),
    "double": pl.Float64(),
    "float": pl.Float32(),
    "bigint": pl.Int64(),
    "int": pl.Int32(),
    "smallint": pl.Int16(),
    "tinyint": pl.Int8(),
    "boolean": pl.Boolean(),
    "timestamp": pl.Datetime("us"),
    "timestamp_ntz": pl.Datetime("us"),
    "date": pl.Date(),
    "binary": pl.Binary(),
}


@stored("spark_stream", called={"columns": "_columns"})
class SparkStreamSource:
    """A streaming DataFrame of this driver's Spark session."""

    def __init__(self, columns: tuple[tuple[str, pl.DataType], ...], frame: Any = None) -> None:
        self._columns = columns
        self._frame = frame

    def __reduce__(self) -> tuple[type[SparkStreamSource], tuple[Any]]:
        return SparkStreamSource, (self._columns,)

    def schema(self) -> pl.Schema:
        return pl.Schema(self._columns)

    def dataframe(self) -> Any:
        return self._frame

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> Cursor:
        return _Driven()

    def read(self, payload: dict[str, Any]) -> Batch:
        import pyarrow.parquet as pq

        begin, end = payload["groups"]
        with pq.ParquetFile(payload["path"]) as file:
            table = file.read_row_groups(list(range(begin, end)), columns=[name for name, _ in self._columns], use_threads=False)
        frame = pl.DataFrame(pl.from_arrow(table))
        zoned = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime) and dtype.time_zone]
        frame = frame.with_columns(pl.col(name).dt.convert_time_zone("UTC").dt.replace_time_zone(None) for name in zoned)
        return Batch(frame.cast(dict(self._columns)))

    def describe(self) -> str:
        return "spark_stream " + ", ".join(f"{name} {dtype}" for name, dtype in self._columns)

    def canonical(self) -> str:
        return self.describe()


class _Driven:
    """Spark decides: there is never anything to choose here."""

    def look(self) -> None:
        """Spark does."""

    def release(self, names: Sequence[str]) -> None:
        """Spark's own sources see to that."""

    def close(self) -> None:
        """The driver stops the query."""

    def choose(self, now: float, everything: bool) -> None:
        return None

    def follow(self, given: Choice | None, agreed: Choice | None) -> None:
        """Nobody else can read what Spark has read here: a flow with this source is not replicated."""

    def backlog(self, now: float) -> bool:
        return False

    def waiting(self, now: float) -> int:
        """Spark knows, and does not say."""
        return 0

    def slow_down(self, share: float) -> None:
        """Spark's own limits hold."""

    def finished(self) -> bool:
        return False


def spark_stream(df: Any) -> SparkStreamSource:
    """Any streaming DataFrame that Spark can read and that keeps no state of its own. Times are UTC.

    >>> stream = spark.readStream.format("rate").load()                   # doctest: +SKIP
    >>> flow.source("ticks", md.spark_stream(stream))                     # doctest: +SKIP
    """
    if not getattr(df, "isStreaming", False):
        raise ConfigError("spark_stream(df) wants a streaming DataFrame (spark.readStream…); for a table or files use md.files(...)")
    columns = []
    for field in df.schema.fields:
        dtype = _TYPES.get(field.dataType.simpleString())
        if dtype is None:
            known = ", ".join(sorted(_TYPES))
            raise FlowError(
                f"spark_stream: column '{field.name}' has type {field.dataType.simpleString()}; supported are {known}. "
                "Cast or flatten it in the DataFrame."
            )
        columns.append((field.name, dtype))
    return SparkStreamSource(tuple(columns), df)
