"""The three ranges of price that q15, q16 and q17 report by.

A filtered aggregate is an aggregate of a column that is null outside its range: nulls count for nothing.
"""

from __future__ import annotations

import meander as md
from meander.aggregates import Agg

RANGES = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}


def ranged(column: str) -> list[str]:
    """``rank1_auction`` and so on: the column where the price is in range, null elsewhere."""
    return [f"CASE WHEN {condition} THEN {column} END AS {rank}_{column}" for rank, condition in RANGES.items()]


def counts() -> list[Agg]:
    """Bids in all and by range; needs ``ranged("auction")``."""
    return [md.count().alias("total_bids"), *(md.count(f"{rank}_auction").alias(f"{rank}_bids") for rank in RANGES)]


def distinct(column: str) -> list[Agg]:
    """Different values in all and by range; needs ``ranged(column)``."""
    total = md.count_distinct(column).alias(f"total_{column}s")
    return [total, *(md.count_distinct(f"{rank}_{column}").alias(f"{rank}_{column}s") for rank in RANGES)]
