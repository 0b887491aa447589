"""The control plane: the HTTP API of one running flow, and its client.

``api.py`` turns requests into verbs of a run, after ``guard.py`` has allowed them. ``problems.py`` turns errors into answers.
``exposition.py`` and ``push.py`` are for Prometheus.

May import: the ground. A run is known by the protocol in ``running.py`` alone, so tests serve a fake.
Begin with ``api.py``.
"""
