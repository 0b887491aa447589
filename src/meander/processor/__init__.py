"""Processors: Python code with state per key. A vocabulary: nothing here knows how they are run.

May import: the ground. ``task/operators/processors/`` runs them. Begin with ``declare.py``.
"""

from __future__ import annotations

from meander.processor.context import Context
from meander.processor.declare import Declaration, Processor, Variable, declaration_of, list_of, map_of, value
from meander.processor.view import Rows

__all__ = ["Context", "Declaration", "Processor", "Rows", "Variable", "declaration_of", "list_of", "map_of", "value"]
