"""What becomes of sources that are changed: which go on where they are, with which columns, and which must say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from tests.plan.streams import Nowhere

import meander as md
from meander.errors import FlowError
from meander.plan.change.become import Become
from meander.plan.change.effects import Effects
from meander.plan.change.modify import Insert, Replace, modify
from meander.plan.graph import Plan
from meander.plan.operators import SourceOp


@dataclass(frozen=True)
class Table:
    """A source of which nothing but the description tells where it is."""

    place: str
    columns: tuple[tuple[str, Any], ...]

    def schema(self) -> pl.Schema:
        return pl.Schema(self.columns)

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> Any: ...

    def read(self, payload: dict[str, Any]) -> Any: ...

    def describe(self) -> str:
        return f"table {self.place}"

    def canonical(self) -> str:
        return "table"


def table(place: str = "here", **columns: Any) -> Table:
    return Table(place, tuple((name, dtype()) for name, dtype in columns.items()))


def plan(source: Table) -> Plan:
    flow = md.Flow("tables")
    read = flow.source("in", source)
    read.filter("a > 0", name="some").key_by("a").aggregate(md.count().alias("n"), name="totals").sink("out", Nowhere())
    read.sink("all", Nowhere())
    return flow.plan()


FIRST = table(a=pl.Int32, b=pl.String)


def changed(source: Table, resume: bool | None = None, before: Plan | None = None) -> tuple[Plan, Effects]:
    return modify(before or plan(FIRST), [Become(plan(source), resume)])


def source_of(found: Plan) -> SourceOp:
    op = found.node("in").op
    assert isinstance(op, SourceOp)
    return op


@pytest.mark.parametrize("how", ["replaced", "as a file"])
def test_other_columns_go_on_and_are_those_of_the_file(how: str) -> None:
    source = table(a=pl.Int64, b=pl.String, c=pl.Float64)
    after, effects = changed(source) if how == "as a file" else modify(plan(FIRST), [Replace("in", source)])
    assert after.digest() == plan(source).digest()
    assert (effects.go_on, effects.restarts, effects.reached) == ({"in"}, set(), {"some", "all", "totals", "out"})
    assert source_of(after).gained == {"c"}
    assert effects.schemas["in"] == ("+c Float64", "a Int32 → Int64")
    assert "source 'in': it goes on where it is" in str(effects)


def test_the_order_of_columns_is_that_of_the_file() -> None:
    after, effects = changed(table(b=pl.String, a=pl.Int32))
    assert (after.digest(), source_of(after).gained) == (plan(table(b=pl.String, a=pl.Int32)).digest(), set())
    assert effects.go_on == {"in"}


def test_what_came_is_remembered_until_it_goes() -> None:
    more, _ = changed(table(a=pl.Int32, b=pl.String, c=pl.String))
    most, _ = changed(table(a=pl.Int32, c=pl.String, d=pl.String), before=more)
    assert source_of(most).gained == {"c", "d"}
    back, _ = changed(FIRST, before=most)
    assert source_of(back).gained == {"b"}
    (one, two) = source_of(most), source_of(back)
    assert one.before is not None
    assert two.before is not None
    assert (one.before.before, two.before.gained) == (None, {"c", "d"})


def test_another_place_has_to_be_explained_and_keeps_the_rules_of_columns_where_it_goes_on() -> None:
    there = table("there", a=pl.Int32, b=pl.String, c=pl.String)
    with pytest.raises(FlowError, match="say whether the new one continues"):
        changed(there)
    after, effects = changed(there, resume=True)
    assert (effects.go_on, effects.restarts, source_of(after).gained, source_of(after).before) == (set(), set(), {"c"}, None)
    after, effects = changed(there, resume=False)
    assert (effects.go_on, effects.restarts, source_of(after).gained) == (set(), {"in"}, set())
    with pytest.raises(FlowError, match="'b' is String and would be Int64"):
        changed(table("there", a=pl.Int32, b=pl.Int64), resume=True)
    changed(table("there", a=pl.Int32, b=pl.Int64), resume=False)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (table(a=pl.Int16, b=pl.String), "column 'a' is Int32 and would be Int16, which not every value of it is"),
        (table(a=pl.String, b=pl.String), "column 'a' is Int32 and would be String"),
        (table(a=pl.UInt64, b=pl.String), "column 'a' is Int32 and would be UInt64"),
    ],
)
def test_a_type_that_does_not_hold_every_value_is_refused(source: Table, why: str) -> None:
    with pytest.raises(FlowError, match=why):
        modify(plan(FIRST), [Replace("in", source)])


def test_a_column_that_is_lost_must_not_be_used() -> None:
    with pytest.raises(FlowError, match="filter 'some': there is no column 'a'"):
        modify(plan(FIRST), [Replace("in", table(b=pl.String))])
    after, _ = modify(plan(FIRST), [Replace("in", table(a=pl.Int32))])
    assert after.schema("all").names() == ["a"]


def test_a_key_becomes_a_wider_integer_and_no_wider_float() -> None:
    _, effects = changed(table(a=pl.Int64, b=pl.String))
    assert effects.state["totals"].words() == "kept, wider in a"
    with pytest.raises(FlowError, match="key column 'a' is Float32 and would be Float64"):
        modify(plan(table(a=pl.Float32)), [Replace("in", table(a=pl.Float64))])


def test_an_operator_between_that_hides_the_columns_hides_the_change() -> None:
    narrow, _ = modify(plan(FIRST), [Insert("cut", md.select("a"), after="in", before="some")])
    _, effects = modify(narrow, [Replace("in", table(a=pl.Int32, b=pl.String, c=pl.String))])
    assert effects.reached == {"cut", "all"}
