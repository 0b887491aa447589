"""The driver's side of an epoch: decide, run, commit, publish, tidy.

``loop.py`` has these steps in order, and ``wiring.py`` the parts that they use. Around them: input, probation of modified plans,
migration, scaling, maintenance. Two contracts keep Spark out: ``runner.py`` (runs an epoch) and ``jobs.py`` (carries messages to tasks).
Simulations run the same loop in process.

May import: the ground, the vocabulary, ``connect``, ``plan``, ``state``, ``coordinate``, ``task`` and ``cache``.
Begin with ``loop.py``, then ``tasks.py``.
"""
