"""Aggregator: an aggregate of a user's own, and how it becomes one like the others.

Its expressions are tried on frames without rows before anything runs: that is where parts get their dtypes,
and where a contradiction between ``init``, ``merge`` and ``finish`` is found.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import polars as pl

from meander.aggregates.contract import OF_A_COLUMN, Agg, Part
from meander.errors import FlowError
from meander.familiar.values import no_aggregate
from meander.plan.code import Code, code_of, read_code
from meander.stored import stored


class Aggregator:
    """A user's own aggregate: subclass, and say how state is made, merged and finished.

    >>> class GeoMean(Aggregator):
    ...     def init(self):
    ...         x = pl.col(self.inputs[0]).log()
    ...         return {"n": x.count().cast(pl.Int64), "logs": x.sum()}
    ...     def merge(self):
    ...         return {"n": self.state("n").sum(), "logs": self.state("logs").sum()}
    ...     def finish(self):
    ...         return (self.state("logs") / self.state("n")).exp()
    >>> GeoMean("price").alias("g").name
    'g'

    ``init`` and ``merge`` are expressions that make one value of a group; ``merge`` must keep the dtype that
    ``init`` gives, and must not care how merges are nested, only in which order states come.
    """

    inputs: tuple[str, ...] = ()
    label: str | None = None

    def __init__(self, *columns: str) -> None:
        if columns:
            self.inputs = columns

    def alias(self, name: str) -> Aggregator:
        """A copy whose value is in the column ``name``."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, label=name)
        return copy

    @property
    def name(self) -> str:
        return self.label or "_".join([type(self).__name__.lower(), *self.inputs])

    def state(self, part: str) -> pl.Expr:
        """The state column that ``init`` calls ``part``."""
        return pl.col(f"{self.name}.{part}")

    def init(self) -> dict[str, pl.Expr]:
        """The state of a group's rows: its parts by name, each an expression over the columns in ``inputs``."""
        raise NotImplementedError

    def merge(self) -> dict[str, pl.Expr]:
        """One state of several: the same parts, each an expression over ``state(part)``."""
        raise NotImplementedError

    def finish(self) -> pl.Expr:
        """The value of a state."""
        raise NotImplementedError


@stored("aggregator", **OF_A_COLUMN)
@dataclass(frozen=True, eq=False)
class Custom(Agg):
    """An Aggregator as an Agg: dtypes are learned on frames without rows."""

    user: Aggregator = dataclasses.field(default_factory=Aggregator)
    written: tuple[str, Code] | None = None
    """Its memory and its code as they were read where it was written; None there."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "written": (self.memory(), self.code())}

    def alias(self, name: str) -> Agg:
        return Custom(user=self.user.alias(name))

    @property
    def name(self) -> str:
        return self.user.name

    def inputs(self) -> tuple[str, ...]:
        return tuple(self.user.inputs)

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        for column in self.user.inputs:
            if column not in schema:
                raise FlowError(f"{self.call()}: there is no column {column!r}; columns are {', '.join(schema)}")
        init, merge = self.user.init(), self.user.merge()
        if not init or set(init) != set(merge):
            raise FlowError(
                f"{self.call()}: init() gives the parts {sorted(init)} and merge() {sorted(merge)}; they must be the same, and some"
            )
        reads = {column for expr in init.values() for column in expr.meta.root_names()} - set(self.user.inputs)
        if reads:
            raise FlowError(
                f"{self.call()}: init() reads {sorted(reads)}, which inputs {tuple(self.user.inputs)} does not name; add it to inputs"
            )
        dtypes = self._learn("init", {column: schema[column] for column in self.user.inputs}, init)
        state = {f"{self.name}.{part}": dtype for part, dtype in dtypes.items()}
        for part, dtype in self._learn("merge", state, merge).items():
            if dtype != dtypes[part]:
                raise FlowError(f"{self.call()}: part {part!r} is {dtypes[part]} after init() and {dtype} after merge(); cast one of them")
        return {part: Part(dtypes[part], init[part], merge[part]) for part in init}

    def output(self, schema: pl.Schema) -> pl.DataType:
        state = {f"{self.name}.{part}": p.dtype for part, p in self.parts(schema).items()}
        try:
            return pl.Schema(state).to_frame().select(self.finish()).schema[self.name]
        except Exception as error:
            raise FlowError(f"{self.call()}: finish() does not work on its state: {error}") from error

    def _finish(self) -> pl.Expr:
        return self.user.finish()

    def _learn(self, step: str, columns: dict[str, Any], exprs: dict[str, pl.Expr]) -> dict[str, pl.DataType]:
        frame = pl.Schema({"": pl.Int8(), **columns}).to_frame()
        try:
            learned = frame.group_by("").agg(**exprs).schema
        except Exception as error:
            raise FlowError(f"{self.call()}: {step}() does not work on columns {', '.join(columns)}: {error}") from error
        return {part: learned[part] for part in exprs}

    def memory(self) -> str:
        if self.written is not None:
            return self.written[0]
        kind = type(self.user)
        settings = tuple(sorted((name, value) for name, value in self.user.__dict__.items() if name != "label"))
        return f"{self.call()} {code_of((kind.init, kind.merge, settings))}"

    def code(self) -> Code:
        return self.written[1] if self.written is not None else read_code(self.user)

    def call(self) -> str:
        return f"{type(self.user).__name__}({', '.join(self.user.inputs)})"


def as_agg(given: Agg | Aggregator) -> Agg:
    """The aggregate that the plan holds, made of what a user gave; FlowError if it is no
    aggregate."""
    if isinstance(given, Agg):
        return given
    if isinstance(given, Aggregator):
        return Custom(user=given)
    raise FlowError(no_aggregate(given))
