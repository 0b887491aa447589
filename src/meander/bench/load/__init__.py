"""The load of the benchmarks: the simulated workload, as a source, as files, and at a steady rate.

Begin with ``workload.py``.
"""
