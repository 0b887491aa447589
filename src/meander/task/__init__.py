"""The work of one task on its rows: read, evaluate, fold, look up, merge, stage.

``stage.py`` is one attempt of one task, from its control message to its report (``messages.py``). ``physical.py`` compiles a plan
once per process. ``operators/`` has the stateful operators. Tests call all of it without a Spark session.

May import: the ground, the vocabulary, ``connect``, ``plan``, ``state`` and ``coordinate``. Where segments come from is given to a
task: it does not know ``cache``.
Begin with ``stage.py``.
"""
