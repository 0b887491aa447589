"""Joins: two streams, a stream with the latest rows of another, semi and anti joins, and joins of streams of changes.

Each file is one kind, behind the contract of ``task/operators/contract.py``. ``pairing.py`` finds the rows that belong
together, ``conditions.py`` asks of pairs what else must hold.

May import: what ``task`` may.
Begin with ``pairs.py``.
"""
