"""Segments near the tasks that read them: an executor's copy of parts of the store.

A task opens segments through ``reader.py``. Where the store is a folder of this machine, it maps them from there. Elsewhere each
executor has files of its own (``disk.py``) and a *steward* (``steward.py``): helper processes that answer other executors, fetch
ahead of time and merge. Segments are immutable, so a cache is never stale; to lose it costs time and nothing else.

May import: what ``task`` may, and ``task``.
Begin with ``reader.py``, then ``steward.py``.
"""
