"""The load of the benchmarks: the simulated workload, as a source, as files, and at a steady rate.

May import: what a benchmark may.
Begin with ``workload.py``.
"""
