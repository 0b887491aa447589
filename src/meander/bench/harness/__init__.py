"""What all benchmarks share: a process per measurement, rounds, peers, statistics, reports and plots.

``rounds.py`` decides the order of measurements, ``isolation.py`` runs each in a process of its own, ``report.py`` says the result.

May import: what a benchmark may. ``child.py``, which runs what a request names, and ``plot.py`` know the single benchmarks.
Begin with ``rounds.py``.
"""
