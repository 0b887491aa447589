"""Queries over changes that people name when they ask for them, each beside its SQL over all input, at several cuts into epochs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from tests.local import Local, Script
from tests.task.changing import table_of

import meander as md

COLUMNS = {"category": pl.String(), "shop": pl.Int64(), "amount": pl.Int64()}
SALES = [
    *(("book", shop, 10) for shop in (1, 2, 4, 1, 1, 3, 2, 4, 1, 4, 4, 4)),
    *(("fruit", shop, 7) for shop in (4, 5, 3, 4, 5, 5, 5)),
    ("tools", 9, 40),
    ("book", 2, -25),
]


@dataclass(frozen=True)
class Example:
    """A query as a flow and as SQL."""

    flow: Callable[[md.Stream], md.Stream]
    sql: str


def per_shop(sales: md.Stream) -> md.Stream:
    counted = (md.count().alias("sells"), md.sum("amount").alias("total"))
    return sales.key_by("category", "shop").aggregate(*counted, name="per_shop")


def per_category(sales: md.Stream) -> md.Stream:
    return sales.key_by("category").aggregate(md.sum("amount").alias("whole"), name="per_category")


PER_SHOP = "(SELECT category, shop, count(*) AS sells, sum(amount)::BIGINT AS total FROM sales GROUP BY ALL)"
EXAMPLES = {
    "the two shops of each category with the most sales, as their counts change": Example(
        lambda sales: (
            per_shop(sales)
            .key_by("category")
            .top(2, by=["sells", "shop"], descending=[True, False], name="best")
            .select("category", "rank", "sells", "shop")
        ),
        f"SELECT category, row_number() OVER (PARTITION BY category ORDER BY sells DESC, shop) AS rank, sells, shop FROM {PER_SHOP} "
        "QUALIFY rank <= 2",
    ),
    "one row over all sums, without a key and without a window": Example(
        lambda sales: per_shop(sales).aggregate(md.count().alias("shops"), md.sum("total").alias("total"), md.max("sells").alias("most")),
        f"SELECT count(*) AS shops, sum(total)::BIGINT AS total, max(sells) AS most FROM {PER_SHOP}",
    ),
    "the share of each shop in its category: an aggregate joined with another": Example(
        lambda sales: (
            per_shop(sales)
            .join(per_category(sales), on="category", where="whole > 0", name="shares")
            .select("category", "shop", "(total * 100) // whole AS percent")
        ),
        f"SELECT category, shop, (total * 100) // whole AS percent FROM {PER_SHOP} "
        "JOIN (SELECT category, sum(amount)::BIGINT AS whole FROM sales GROUP BY ALL) USING (category) WHERE whole > 0",
    ),
    "how many shops are in each bracket of their total": Example(
        lambda sales: per_shop(sales).with_columns("total // 10 AS bracket").key_by("bracket").aggregate(md.count().alias("shops")),
        f"SELECT total // 10 AS bracket, count(*) AS shops FROM {PER_SHOP} GROUP BY ALL",
    ),
    "categories without a shop above 35": Example(
        lambda sales: (
            per_category(sales)
            .join(per_shop(sales).filter("total > 35"), on="category", how="anti", name="small")
            .select("category", "whole")
        ),
        "SELECT category, sum(amount)::BIGINT AS whole FROM sales GROUP BY ALL "
        f"HAVING category NOT IN (SELECT category FROM {PER_SHOP} WHERE total > 35)",
    ),
}


@pytest.mark.many
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_what_sql_says_of_all_input_however_that_is_cut(tmp_path: Path, name: str, seed: int) -> None:
    example, rng = EXAMPLES[name], random.Random(seed)
    sales = rng.sample(SALES, len(SALES))
    wanted = answer(example.sql, sales)
    epochs = []
    while sales:
        size = len(SALES) if seed == 0 else 1 if seed == 1 else rng.randint(1, 7)
        epochs.append(((0, tuple(sales[:size])),))
        sales = sales[size:]
    flow, log = md.Flow("f"), md.memory()
    example.flow(flow.source("sales", Script(COLUMNS, tuple(epochs)))).changes().sink("log", log)
    local = Local(flow, tmp_path, rng.choice((1, 2, 3)))
    while local.step():
        if rng.random() < 0.2:
            local = Local(flow, tmp_path, rng.choice((1, 2, 3)))
    assert sorted(table_of(log.frame()).rows()) == wanted


def answer(sql: str, sales: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE sales (category VARCHAR, shop BIGINT, amount BIGINT)")
        connection.executemany("INSERT INTO sales VALUES (?, ?, ?)", sales)
        return sorted(connection.execute(sql).fetchall())
