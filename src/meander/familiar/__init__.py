"""Names from PySpark, Polars and pandas, and the names to write here instead. For messages.

May import: nothing of ours but the leaf ``plan.schemas``. Begin with ``names.py``.
"""
