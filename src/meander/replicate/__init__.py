"""Replicas of one flow: membership, election, the supervisor and the handle.

``membership.py`` and ``follow.py`` make a loop one of several on a store. ``supervisor.py`` starts replicas as processes, watches
them and starts them again; ``handle.py`` is its public handle, ``md.Replicas``.

May import: what ``epochs`` may, and ``epochs``. It does not import Spark.
Begin with ``membership.py``; for processes with ``supervisor.py``.
"""
