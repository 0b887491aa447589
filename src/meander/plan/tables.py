"""A join of a stream with a table that does not change. It has no state: every row is looked up where it is.

A frame travels with the plan. A file is read once by every worker, which must see it under the same path, and must find it as it was
when the flow was written: a table that changes under a running flow is an error, not another result.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from meander.errors import BadInput, FlowError
from meander.familiar.values import no_table
from meander.plan.code import code_of
from meander.plan.joins import Matching
from meander.plan.operators import MapBatches, expect_inputs
from meander.plan.schemas import show_schema

Table = pl.DataFrame | str | Path | Callable[[], pl.DataFrame]
HOWS = ("inner", "left", "semi", "anti")
_MOST_BYTES = 16 << 20


@dataclass(eq=False)
class Lookup:
    """The table, and what is done with it to a frame of rows."""

    matching: Matching
    how: str
    schema: pl.Schema
    """The table's columns."""
    digest: str
    packed: bytes | None = None
    """The table itself, or None where it is in a file."""
    path: str | None = None
    made_by: str = ""
    """Hex over the code of the function that made it; empty where none did."""
    _table: pl.DataFrame | None = field(default=None, repr=False)

    def table(self) -> pl.DataFrame:
        """Unpacked or read once per process."""
        if self._table is None:
            if self.packed is not None:
                self._table = pl.read_ipc(io.BytesIO(self.packed))
            else:
                assert self.path is not None
                self._table, digest = read_table(self.path, f"join_static with {self.path}")
                if digest != self.digest:
                    raise BadInput(
                        f"join_static: {self.path} is not what it was when the flow was written; put it back, or start the flow again"
                    )
        return self._table

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        table, on = self.table(), self.matching
        keys: dict[str, Any] = {"left_on": list(on.left_on), "right_on": list(on.right_on), "nulls_equal": on.nulls_equal}
        if self.how in ("semi", "anti"):
            return frame.join(table, how="semi" if self.how == "semi" else "anti", maintain_order="left", **keys)
        names = on.names(frame.columns, table.columns)
        values = table.rename({column: name for column, name in names.items() if column not in on.right_on})
        return frame.join(values, how="inner" if self.how == "inner" else "left", maintain_order="left_right", coalesce=True, **keys)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}


@dataclass(frozen=True, eq=False)
class JoinStatic(MapBatches):
    """Rows with those of a table that have an equal key."""

    kind: ClassVar[str] = "join_static"
    carries: ClassVar[bool] = True

    @property
    def lookup(self) -> Lookup:
        assert isinstance(self.fn, Lookup)
        return self.fn

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        lookup, what = self.lookup, f"join_static {name!r}"
        lookup.matching.check(schema, lookup.schema, what)
        return schema if lookup.how in ("semi", "anti") else lookup.matching.schema(schema, lookup.schema, what)

    def describe(self) -> str:
        table = self.lookup.path or f"a table of {show_schema(self.lookup.schema)}"
        return f"{self.lookup.how} on {self.lookup.matching.describe()}, with {table}"

    def canonical(self) -> str:
        """A frame is a part of the flow. What a file or a function gives is taken as it is when the flow is started."""
        content = self.lookup.digest if self.lookup.path is None and not self.lookup.made_by else ""
        return f"{self.lookup.matching.canonical()} {self.lookup.how} {list(self.lookup.schema.items())} {content}"

    def code(self) -> str:
        return self.lookup.made_by


def join_static(table: Table, matching: Matching, how: str, what: str) -> JoinStatic:
    """The operator, with the table read."""
    if how not in HOWS:
        raise FlowError(f"{what}: how={how!r}; there are {', '.join(HOWS)}")
    if isinstance(table, str | Path):
        frame, digest = read_table(str(table), what)
        lookup = Lookup(matching, how, frame.schema, digest, None, str(Path(table).absolute()))
    else:
        made_by = ""
        if not isinstance(table, pl.DataFrame):
            if not callable(table):
                raise FlowError(f"{what}: {no_table(table)}")
            made_by, table = code_of(table), table()
            if not isinstance(table, pl.DataFrame):
                raise FlowError(f"{what}: the function returned {type(table).__name__}; it must return a polars DataFrame")
        out = io.BytesIO()
        table.rechunk().write_ipc(out, compression="zstd")
        packed = out.getvalue()
        if len(packed) > _MOST_BYTES:
            raise FlowError(
                f"{what}: the table has {len(packed) >> 20} MB, and travels with every task: write it into a Parquet file that all workers "
                "see, and give its path"
            )
        digest = hashlib.sha256(table.write_ndjson().encode()).hexdigest()  # text: Arrow's bytes may change with Polars' version
        lookup = Lookup(matching, how, table.schema, digest, packed, None, made_by)
    return JoinStatic(lookup, None, True, True)


def read_table(path: str, what: str) -> tuple[pl.DataFrame, str]:
    """A file's rows, and a digest of its bytes."""
    readers: dict[str, Callable[[io.BytesIO], pl.DataFrame]] = {".parquet": pl.read_parquet, ".csv": pl.read_csv}
    suffix = Path(path).suffix.lower()
    if suffix not in readers:
        raise FlowError(f"{what}: {path!r} ends neither in .parquet nor in .csv; read it, and give the DataFrame")
    try:
        data = Path(path).read_bytes()
        return readers[suffix](io.BytesIO(data)), hashlib.sha256(data).hexdigest()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FlowError(f"{what}: {path!r} cannot be read: {error}") from error
