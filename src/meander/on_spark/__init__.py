"""The only room that imports PySpark: sessions, jobs, executors, and the start of a flow.

``jobs.py`` carries out ``epochs.jobs`` with RDDs; its tasks run ``meander.worker``. ``opening.py`` starts a flow on a store,
``structured.py`` lets Structured Streaming drive the loop, ``allocation.py`` and ``introduction.py`` are about executors that
come and go.

May import: what ``epochs`` may, ``epochs``, ``replicate`` and ``worker``.
Begin with ``opening.py``, then ``jobs.py``.
"""
