"""Aggregates over a stream of changes: states from which rows that are gone can be taken back, exactly.

Over changes an aggregate gets added rows and removed rows; every removed row was added before. The
state must be bit for bit as if the removed rows had never been added: otherwise a result would
depend on how input is cut into epochs. Integers and decimals are subtracted. An aggregate that
needs the values themselves keeps them in a table, each with its count (a *bag*). All other
aggregates are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from meander import sketches
from meander.aggregates.contract import OF_A_COLUMN, Agg, Part, Way
from meander.aggregates.kinds import Mean, Sum
from meander.plan.code import Code
from meander.stored import stored

_INT = pl.Int64()
CAME, WENT = "came", "went"
"""The parts of an aggregate with a bag: on their way, lists of values that have come and of those that are gone."""


@dataclass(frozen=True, eq=False)
class OverChanges(Agg):
    """An aggregate over changes. Its name, its columns and its description are those of ``of``."""

    of: Agg = None  # type: ignore[assignment]  # dataclasses want a default behind those of Agg
    bag: ClassVar[bool] = False
    """Whether it keeps its values in a table of their own: its parts then only travel."""

    @property
    def name(self) -> str:
        return self.of.name

    def inputs(self) -> tuple[str, ...]:
        return self.of.inputs()

    def output(self, schema: pl.Schema) -> pl.DataType:
        return self.of.output(schema)

    def call(self) -> str:
        return self.of.call()

    def memory(self) -> str:
        return f"{self.of.memory()} over changes"

    def code(self) -> Code:
        return self.of.code()

    def taken(self, parts: dict[str, Part]) -> list[pl.Expr]:
        """The state of rows that are gone, from the state that they would have as rows that came."""
        return [(pl.lit(0, part.dtype) - self._state(name)).alias(f"{self.name}.{name}") for name, part in parts.items()]


@stored("count_over_changes", **OF_A_COLUMN)
class Counting(OverChanges):
    """A count: it may as well go down."""

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        return self.of.parts(schema)

    def _finish(self) -> pl.Expr:
        return self._state("n")


@stored("sum_over_changes", **OF_A_COLUMN)
class Summing(OverChanges):
    """A sum, or a mean, with the number of values: a sum of none is null, and not 0."""

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        column = pl.col(str(self.column))
        counted = Part(_INT, column.count().cast(_INT), self._state("n").sum(), "sum", ("valid", self.column))
        return {"n": counted, "sum": Sum(self.column, self.name).parts(schema)["sum"]}

    def _finish(self) -> pl.Expr:
        some = pl.when(self._state("n") > 0)
        return some.then(self._state("sum") / self._state("n") if isinstance(self.of, Mean) else self._state("sum"))


@stored("quantile_over_changes", **OF_A_COLUMN)
class Ranking(OverChanges):
    """A quantile: the sketch counts values in buckets, and counts can go down."""

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        part = self.of.parts(schema)["buckets"]
        counted = pl.element().filter(pl.element().struct.field("n") != 0)
        return {"buckets": Part(part.dtype, part.init, part.merge.list.eval(counted))}

    def taken(self, parts: dict[str, Part]) -> list[pl.Expr]:
        bucket, n = pl.element().struct.field("bucket"), pl.element().struct.field("n")
        return [self._state("buckets").list.eval(pl.struct(bucket, -n)).cast(sketches.BUCKETS)]

    def _finish(self) -> pl.Expr:
        return self.of._finish()


@stored("values_over_changes", **OF_A_COLUMN)
class Bag(OverChanges):
    """An aggregate computed from the values that are present: smallest, largest, number of distinct
    ones."""

    bag = True

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        dtype = pl.List(schema[str(self.column)])
        column = pl.col(str(self.column))
        return {
            CAME: Part(dtype, column.drop_nulls().implode(), self._joined(CAME)),
            WENT: Part(dtype, column.filter(pl.lit(False)).implode(), self._joined(WENT)),
        }

    def _joined(self, part: str) -> pl.Expr:
        return self._state(part).explode().drop_nulls().implode()

    def state_columns(self, schema: pl.Schema) -> list[str]:
        return [f"{self.name}.{part}" for part in (CAME, WENT, "value", "n")]

    def taken(self, parts: dict[str, Part]) -> list[pl.Expr]:
        return [self._state(CAME).alias(f"{self.name}.{WENT}"), self._state(WENT).alias(f"{self.name}.{CAME}")]

    def of_values(self) -> pl.Expr:
        """The result, from a group's values (in ``value``, ascending) and their numbers (in ``n``)."""
        return self.of.fold_values(self._state("value"), self._state("n")).alias(self.name)

    def fold_none(self, dtype: pl.DataType) -> pl.Expr:
        return self.of.fold_none(dtype)

    def _finish(self) -> pl.Expr:
        return pl.col(self.name)


_WAYS: dict[Way, type[OverChanges]] = {"counted": Counting, "summed": Summing, "in buckets": Ranking, "as a bag": Bag}


def over_changes(agg: Agg, schema: pl.Schema) -> OverChanges:
    """The aggregate as it is over changes; FlowError with the reason where it cannot be exact there."""
    return _WAYS[agg.over_changes(schema)](column=agg.column, label=agg.label, of=agg)
