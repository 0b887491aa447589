"""Descriptions as data: how operators, sources, sinks, aggregates and readers of state are written into a store, and read back.

Owned here: the kinds (``kinds.py``), their values as JSON (``values.py``), Polars' types (``types.py``) and expressions
(``expressions.py``), and the code of users' functions (``code.py``). A class says its kind with ``@stored("tumbling")``, in the file in
which it is defined. No module or class of ours is named in a store, so both can be renamed. ``docs/decisions/0028-plans-are-data.md``
describes the form.

May import: ``errors``, and the leaf ``plan/code.py``. ``plan/documents.py`` and ``task/reading.py`` make whole documents. Begin with
``kinds.py``.
"""

from __future__ import annotations

from meander.stored.kinds import stored

__all__ = ["stored"]
