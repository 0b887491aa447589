"""Nexmark's queries as flows: one file per query, each readable as an example of the API.

A module has ``flow(tables, out)``: ``tables`` gives the source of each entity that the query reads, the generator's or files, ``out`` is
where the results go. ``docs/nexmark.md`` says what exactly each query is, and when its results come.

May import: what ``nexmark`` may.
Begin with ``q1.py``, then ``q5.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.errors import ConfigError
from meander.flow import Flow
from meander.nexmark.answers import ANSWERS
from meander.nexmark.workload import ENTITIES
from meander.stored.code import written_by_users

written_by_users(__name__)

FLOWS: dict[str, tuple[str, ...]] = {query: tuple(name for name in known.tables if name in ENTITIES) for query, known in ANSWERS.items()}
"""The queries, and the tables of events that they read."""


def build(query: str, tables: Mapping[str, Source], out: Sink) -> Flow:
    """The flow of a query over these tables.

    >>> from meander import memory, nexmark
    >>> print(build("q2", nexmark.sources(["bid"], events=1000), memory()).explain().splitlines()[0])
    flow q2, plan version 1
    """
    if query not in FLOWS:
        raise ConfigError(f"query {query!r}: there is no such query; there are {', '.join(FLOWS)}")
    missing = [name for name in FLOWS[query] if name not in tables]
    if missing:
        raise ConfigError(f"query {query!r}: it reads {', '.join(FLOWS[query])}; give tables[{missing[0]!r}] too")
    module = importlib.import_module(f"meander.nexmark.queries.{query}")
    return cast(Flow, module.flow(tables, out))
