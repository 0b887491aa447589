"""Windows at work: of time, of a number of rows, and sessions; aggregates and best rows in them.

``time.py`` and ``counts.py`` store panes, ``sessions.py`` stores sessions, ``top.py`` the best rows of a window.

May import: what ``task`` may.
Begin with ``time.py``.
"""
