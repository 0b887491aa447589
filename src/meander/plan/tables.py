"""A join of a stream with a table that does not change. It has no state: every row is looked up where it is.

A small frame travels with the plan. A large one is stored: the plan has its digest alone, and workers look rows up in what the store
holds. A file is read once by every worker, which must see it under the same path, and must find it as it was
when the flow was written: a table that changes under a running flow is an error, not another result.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa

from meander.errors import BadInput, FlowError
from meander.familiar.values import no_table
from meander.plan.code import Code, code_of
from meander.plan.content import content_digest
from meander.plan.joins import Matching
from meander.plan.operators import MapBatches, expect_inputs
from meander.plan.schemas import show_schema
from meander.stored import stored

Table = pl.DataFrame | str | Path | Callable[[], pl.DataFrame]
HOWS = ("inner", "left", "semi", "anti")
_MOST_BYTES = 16 << 20
"""Of a packed frame that travels with the plan."""
LARGEST = 2 << 30
"""Of a frame that is stored, in memory. A worker's machine should be able to hold it in its page cache."""
_FORMAT = 1
Find = Callable[[pl.DataFrame], pl.DataFrame]
"""Rows of a table that can have some keys: all that have them, those of a key in the table's order, and maybe others."""
_carrying = contextvars.ContextVar("carrying", default=False)


@stored("table")
@dataclass(eq=False)
class Lookup:
    """The table, and the join of a frame of rows with it."""

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
                    raise BadInput(f"join_static: {self.path} has changed since the flow was written; put it back, or start the flow again")
        return self._table

    def rows_for(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The table's rows, or as many of them as can meet one of these."""
        return self.table()

    def describe(self) -> str:
        return self.path or f"a table of {show_schema(self.schema)}"

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        table, on = self.rows_for(frame), self.matching
        keys: dict[str, Any] = {"left_on": list(on.left_on), "right_on": list(on.right_on), "nulls_equal": on.nulls_equal}
        if self.how in ("semi", "anti"):
            return frame.join(table, how="semi" if self.how == "semi" else "anti", maintain_order="left", **keys)
        names = on.names(frame.columns, table.columns)
        values = table.rename({column: name for column, name in names.items() if column not in on.right_on})
        return frame.join(values, how="inner" if self.how == "inner" else "left", maintain_order="left_right", coalesce=True, **keys)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}


@stored("stored_table", without=("frame", "find"))
@dataclass(eq=False)
class StoredLookup(Lookup):
    """A table that is too large to travel with the plan. ``digest`` is over its content."""

    rows: int = 0
    bytes: int = 0
    frame: pl.DataFrame | None = field(default=None, repr=False)
    """The table, where the flow was written: in whatever process it is to be stored from."""
    find: Find | None = field(default=None, repr=False)
    """How its rows are found: given to it in a worker, which has no frame."""

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns that are stored."""
        return self.matching.right_on if self.how in ("semi", "anti") else tuple(self.schema)

    def identity(self) -> str:
        """The identity of the stored table: equal for the same rows, found by the same keys."""
        said = f"{_FORMAT} {self.digest} {self.matching.right_on} {self.matching.nulls_equal} {self.kept}"
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def table(self) -> pl.DataFrame:
        if self.frame is None:
            raise FlowError(f"join_static on {self.matching.describe()}: its table is in a flow's store, and is not at hand here")
        return self.frame

    def rows_for(self, frame: pl.DataFrame) -> pl.DataFrame:
        if self.find is None:
            return self.table()
        keys = frame.select(self.matching.left_on)
        return self.find(keys if self.matching.nulls_equal else keys.drop_nulls())

    def describe(self) -> str:
        return f"a stored table of {self.rows:,} rows ({self.bytes / 1e6:,.0f} MB, {self.digest[:12]}): {show_schema(self.schema)}"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "find": None, "frame": self.frame if _carrying.get() else None}


@contextlib.contextmanager
def carrying_tables() -> Iterator[None]:
    """Plans that are pickled within this have their tables with them, however large: for a process that is to store them."""
    before = _carrying.set(True)
    try:
        yield
    finally:
        _carrying.reset(before)


@stored("join_static", called={"fn": "function", "written": "code"})
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
        return f"{self.lookup.how} on {self.lookup.matching.describe()}, with {self.lookup.describe()}"

    @property
    def is_of_the_flow(self) -> bool:
        """Whether its rows are a part of the flow, as a frame is. The rows of a file or a function
        are read at each start."""
        return self.lookup.path is None and not self.lookup.made_by

    def canonical(self) -> str:
        content = self.lookup.digest if self.is_of_the_flow else ""
        return f"{self.lookup.matching.canonical()} {self.lookup.how} {list(self.lookup.schema.items())} {content}"

    def code(self) -> Code:
        return Code(self.lookup.made_by)


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
        try:
            packed = _packed(table)
        except pl.exceptions.PolarsError as error:
            raise FlowError(f"{what}: the table has a column that cannot be stored ({error}): cast it first") from error
        if packed is None:
            lookup = _stored(table, matching, how, made_by, what)
        else:
            digest = hashlib.sha256(table.write_ndjson().encode()).hexdigest()  # text: Arrow's bytes may change with Polars' version
            lookup = Lookup(matching, how, table.schema, digest, packed, None, made_by)
    return JoinStatic(lookup, None, True, True)


def _packed(table: pl.DataFrame) -> bytes | None:
    """The frame as it travels with a plan; None where it is too large for that."""
    size = int(table.estimated_size())
    if size > 4 * _MOST_BYTES:  # whether all of it is to be packed is known when some of it is
        rows, so_far = max(1, table.height * _MOST_BYTES // size), 0
        for start in range(0, table.height, rows):
            so_far += len(_ipc(table[start : start + rows]))
            if so_far > 2 * _MOST_BYTES:
                return None
    packed = _ipc(table)
    return packed if len(packed) <= _MOST_BYTES else None


def _ipc(table: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    table.rechunk().write_ipc(out, compression="zstd")
    return out.getvalue()


def _stored(table: pl.DataFrame, matching: Matching, how: str, made_by: str, what: str) -> StoredLookup:
    size = int(table.estimated_size())
    if size > LARGEST:
        raise FlowError(
            f"{what}: the table has {size >> 20:,} MB, more than the {LARGEST >> 20:,} MB that every machine should hold: select the "
            "columns and rows that are needed, or make it a source and use join_latest, whose state is divided among the workers"
        )
    try:
        back = pl.DataFrame(pl.from_arrow(table.head(0).to_arrow(compat_level=pl.CompatLevel.oldest())))
        back.cast(table.schema)
        digest = content_digest(table)
    except (pl.exceptions.PolarsError, pa.ArrowException, AttributeError) as error:
        raise FlowError(f"{what}: the table has a column that cannot be stored ({error}): cast it first") from error
    return StoredLookup(matching, how, table.schema, digest, None, None, made_by, rows=table.height, bytes=size, frame=table)


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
