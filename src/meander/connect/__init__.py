"""Sources and sinks, one file each, behind two protocols.

``source.py`` and ``sink.py`` are the protocols. Each other file is one source or one sink, or a part of one: reading lines,
finding files, staged Arrow. A source is described on the driver, chooses input there, and reads it in tasks; a sink encodes in
tasks and publishes on the driver.

May import: the ground (errors, clock, durable, settings, metrics, …) and the vocabulary (aggregates, sketches, processor).
Begin with ``source.py``, then ``files.py``; ``sink.py``, then ``parquet.py``.
"""
