"""The flows of the queries, without Spark: what is there, what is refused, and that columns are the oracle's."""

from __future__ import annotations

import polars as pl
import pytest

from meander import memory, nexmark
from meander.errors import ConfigError
from meander.nexmark.queries import FLOWS, build


@pytest.mark.many
@pytest.mark.parametrize("query", FLOWS)
def test_a_flow_gives_the_columns_of_the_oracles_answer(query: str) -> None:
    flow = build(query, nexmark.sources(FLOWS[query], events=100), memory())
    last = flow.plan().nodes[-1].inputs[0]
    empty = {entity: nexmark.source(entity).schema().to_frame() for entity in FLOWS[query]}
    if query == "q12":
        empty["bid"] = empty["bid"].with_columns(pl.lit(None, pl.Datetime("us")).alias("p_time"))
    columns = flow._schemas[last].to_frame()
    assert nexmark.compare(columns, nexmark.answer(query, empty)) is None
    assert columns.columns == nexmark.answer(query, empty).column_names


def test_a_query_without_a_flow_and_a_table_that_is_not_given_are_refused() -> None:
    with pytest.raises(ConfigError, match="q22"):
        build("q23", nexmark.sources(events=1), memory())
    with pytest.raises(ConfigError, match="it reads bid"):
        build("q0", nexmark.sources(["person"], events=1), memory())
