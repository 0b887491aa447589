"""State: keys, segments, tables, the log and the manifest; and in ``stores/`` the places where they live.

A *segment* is an immutable Arrow file of rows, sorted by key hash. A *table* is the segments of one operator's rows. The *log*
decides what has happened; a *manifest* is everything that the log says up to one position. Other code reads and writes state by
these files alone. ``formats.py`` has the version of every stored format; docs/formats.md describes them.

May import: the ground and the vocabulary. I/O is in ``stores/`` only.
Begin with ``log.py`` and ``manifest.py``, then ``segment.py`` and ``table.py``.
"""
