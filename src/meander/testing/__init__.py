"""For tests of flows: a flow in process, without Spark and Java, epoch by epoch, with a clock that the test moves.

>>> from meander import testing
>>> clicks = testing.source({"user": "string", "ts": "timestamp"}, [[("ada", "2026-03-01T10:00:00")]])

``testing.run(flow, tmp_path)`` runs the flow with the real loop, tasks, store and log. See docs/testing-flows.md.

May import: everything but ``nexmark``, ``bench`` and ``cli``.
Begin with ``running.py``, then ``jobs.py``.
"""

from __future__ import annotations

from meander.testing.checking import check
from meander.testing.clock import Clock
from meander.testing.rows import source
from meander.testing.running import LocalRun, run

__all__ = ["Clock", "LocalRun", "check", "run", "source"]
