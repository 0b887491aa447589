"""The common parts of all benchmarks: a process per measurement, rounds, peers, statistics, reports
and plots.

``rounds.py`` decides the order of measurements, ``isolation.py`` runs each in a process of its own, ``report.py`` says the result.

May import: what a benchmark may. ``child.py``, which runs the work that a request names, and
``plot.py`` import the single benchmarks. Begin with ``rounds.py``.
"""
