"""Nexmark: an online auction's people, auctions and bids as a stream, 23 queries over it, and an oracle that knows their answers.

``source`` and ``write_files`` give the events, ``queries`` has the flows, ``answer`` computes with DuckDB what a query must come to, and
``compare`` says where two results differ. ``docs/nexmark.md`` has every query in words.
"""

from __future__ import annotations

from meander.nexmark.stream import NexmarkSource, only, source, sources, write_files
from meander.nexmark.workload import ENTITIES, Workload

__all__ = ["ENTITIES", "NexmarkSource", "Workload", "only", "source", "sources", "write_files"]
