"""Benchmarks: Meander beside Spark's own stateful streaming, on the same input, in processes of their own."""
