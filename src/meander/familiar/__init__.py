"""What people write who know PySpark, Polars or pandas, and what it is here. For messages.

May import: nothing of ours but the leaf ``plan.schemas``. Begin with ``names.py``.
"""
