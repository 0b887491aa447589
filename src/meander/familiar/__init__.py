"""What people write who know PySpark, Polars or pandas, and what it is here. For messages."""
