"""Benchmarks: Meander beside Spark's own stateful streaming, on the same input, in processes of their own.

One file or folder per benchmark. In a folder ``ours`` is the flow, ``peer`` the same in Spark, and ``request`` the message that a
measuring process is started with. ``harness/`` and ``load/`` are common to all.

May import: everything but ``cli``; PySpark for the peers. Begin with ``main.py``, then ``throughput/``.
"""

from __future__ import annotations

from meander.stored.code import written_by_users

written_by_users(__name__)
