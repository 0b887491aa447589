"""Nexmark: an online auction's people, auctions and bids as a stream, 23 queries over it, and an oracle that knows their answers.

``source`` and ``write_files`` give the events, ``queries`` has the flows, ``answer`` computes with DuckDB what a query must come to, and
``compare`` says where two results differ. ``docs/nexmark.md`` has every query in words.

May import: everything but ``bench`` and ``cli``. The oracle (``answers.py``, ``oracle.py``, ``comparison.py``) imports nothing that
takes part in an answer.
Begin with ``stream.py``, then ``queries/``.
"""

from __future__ import annotations

from meander.nexmark.comparison import Difference, compare
from meander.nexmark.oracle import answer, latest, side_input
from meander.nexmark.stream import NexmarkSource, only, source, sources, write_files
from meander.nexmark.workload import ENTITIES, Workload

__all__ = [
    "ENTITIES",
    "Difference",
    "NexmarkSource",
    "Workload",
    "answer",
    "compare",
    "latest",
    "only",
    "side_input",
    "source",
    "sources",
    "write_files",
]
