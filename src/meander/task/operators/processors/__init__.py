"""Processors at work: a user's Python code, with state per key that is read and written in columns.

``per_key.py`` calls the code once per key, ``whole.py`` once per slot. ``wakeups.py`` keeps timers, ``calls.py`` is common to both forms.

May import: what ``task`` may.
Begin with ``operator.py``.
"""
