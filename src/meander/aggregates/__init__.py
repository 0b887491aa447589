"""Aggregates: what a key's rows are folded into. Public; used as ``key_by(...).aggregate(count(), sum("amount").alias("total"))``.

An aggregate is of a column, or of an expression: SQL text as in ``sum("price * quantity")``, or Polars. Then it needs an alias.

Nulls as in SQL: they count for nothing (``count()`` without a column counts rows); an aggregate of nulls only
is null, a list of them empty. ``collect``, ``first`` and ``last`` skip nulls too, and follow the order of rows.

Owns what an aggregate is, and all that there are: each of them, its class and its function, is in ``kinds.py`` alone.

May import: the ground (errors, clock, …) and ``sketches``. Begin with ``contract.py``, then ``kinds.py``.
"""

from __future__ import annotations

from meander.aggregates import kinds
from meander.aggregates.contract import Agg, Part
from meander.aggregates.kinds import *  # noqa: F403  # its __all__ is the one list of aggregates
from meander.aggregates.user import Aggregator, as_agg

__all__ = ["Agg", "Aggregator", "Part", "as_agg"]
__all__ += kinds.__all__
