"""Changing a plan: changes as data, and the next version of a plan with all that it means. Pure.

``modify.py`` applies a list of changes to a plan, or refuses all of it. ``layout.py`` decides whether stored state can go on with
another operator, ``effects.py`` says what a modification means, ``become.py`` makes one change of the difference of two flows,
and ``as_json.py`` and ``code.py`` are the forms in which changes travel.

May import: what ``plan`` may. Carrying a change out is the work of ``epochs``.
Begin with ``modify.py``.
"""
