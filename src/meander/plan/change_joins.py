"""Joins with one or two streams of changes as input: the operators, and their output columns.

A row of such an input can be removed again, and its pairs with it. So all rows of both sides are
kept, and the output is a stream of changes. There is no bound of time: it would drop rows from the
state whose pairs may still have to be removed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from meander.errors import FlowError
from meander.plan.code import NO_CODE, Code
from meander.plan.expressions import Expression, parse, text_of
from meander.plan.joins import Input, Matching
from meander.plan.operators import Filter, expect_inputs
from meander.stored import stored

HOWS = ("inner", "left", "right", "full", "semi", "anti")
Key = tuple[str, ...]


@stored("join_changes")
@dataclass(frozen=True, eq=False)
class ChangeJoin:
    """Pairs of rows of two bags with equal keys, as they are now: a pair is there as often as its rows are, multiplied."""

    kind: ClassVar[str] = "join"
    stateful: ClassVar[bool] = True
    matching: Matching
    how: str
    where: Filter | None = None

    @property
    def pairs(self) -> bool:
        """Whether it emits pairs, and not only rows of the left."""
        return self.how not in ("semi", "anti")

    @property
    def alone(self) -> tuple[bool, bool]:
        """Whether rows of the left, and of the right, are emitted without a partner."""
        return self.how in ("left", "full", "anti"), self.how in ("right", "full")

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        left, right = expect_inputs(self.kind, name, inputs, 2)
        what = f"join {name!r}"
        self.matching.check(left, right, what)
        schema = self.matching.schema(left, right, what)
        if self.where is not None:
            try:
                self.where.output_schema([schema], name)
            except FlowError as error:
                raise FlowError(f"{what}: where: {error}") from error
        return schema if self.pairs else pl.Schema(left)

    def key_after(self, left: Key | None, right: Key | None, columns: tuple[Collection[str], Collection[str]]) -> Key | None:
        """The columns that identify an output row, given those of both inputs; None where there are
        none.

        In a full join a row of either side that is alone can have nulls in all of them.
        """
        if not self.pairs:
            return left
        if left is None or right is None or self.how == "full":
            return None
        names = self.matching.names(list(columns[0]), list(columns[1]))
        return tuple(dict.fromkeys((*left, *(names[column] for column in right))))

    def describe(self) -> str:
        also = f", where {self.where.describe()}" if self.where is not None else ""
        return f"{self.how} on {self.matching.describe()}, as both sides are now{also}"

    def canonical(self) -> str:
        return f"changes {self.matching.canonical()} {self.how} {'' if self.where is None else self.where.canonical()}"

    def code(self) -> Code:
        return NO_CODE


def plan_change_join(
    left: Input, right: Input, matching: Matching, how: str, within: object, where: Expression | None, time: str | None
) -> ChangeJoin:
    """The operator for the requested join; FlowError with the reason if there is none."""
    what = f"join after {left.name!r}"
    if how not in HOWS:
        raise FlowError(f"{what}: how={how!r}; there are {', '.join(HOWS)}")
    if within is not None:
        raise no_bound(what, f"within={within!r}")
    if time is not None:
        raise FlowError(
            f"{what}: time={time!r}; one of its inputs is a stream of changes, whose pairs come and go at no time: leave it out"
        )
    matching.check(left.schema, right.schema, what)
    schema = matching.schema(left.schema, right.schema, what)
    return ChangeJoin(matching, how, None if where is None else Filter(parse(where, schema), text_of((where,), {})))


def no_bound(what: str, bound: str) -> FlowError:
    return FlowError(
        f"{what}: {bound}; one of its inputs is a stream of changes: a row of it can be removed at any time, whatever its own time is, and "
        "then its pairs must be removed, too. Join without a bound (where= can leave out old rows), or join append-only streams: "
        "windows that close, say"
    )
