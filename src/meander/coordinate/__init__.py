"""Decisions of the driver, as pure functions: facts in, decision out.

Which slot owns which key group, how state moves, how many slots and executors a load needs, and how far event time has come.
Nothing here reads a clock, a store or an executor; ``epochs`` gathers the facts and acts on the decisions.

May import: the ground, the vocabulary, ``connect``, ``plan`` and ``state``.
Begin with ``routing.py``, then ``migration.py``; ``capacity.py``, then ``autoscaling.py``.
"""
