"""Messages for values that are no source, sink, stream or expression; each message says what to
pass instead.

Values are recognised by the names of their classes: PySpark and pandas are not imported for it.
"""

from __future__ import annotations

import os
from typing import Any

_LIBRARIES = {"polars": "Polars", "pandas": "pandas", "pyarrow": "PyArrow"}


def named(value: object) -> str:
    """A short name of a value: a message must not print a table, nor an address.

    >>> named(3), named("in/"), named(len), named([1, 2])
    ('3', "'in/'", "the function 'len'", 'a list')
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        shown = repr(value)
        return shown if len(shown) <= 80 else f"{shown[:77]}..."
    if isinstance(value, type):
        return f"the class {value.__name__!r}"
    if _is_function(value):
        name = getattr(value, "__name__", "")
        return "a lambda" if name == "<lambda>" else f"the function {name!r}"
    kind = type(value)
    if kind.__module__.startswith("pyspark."):
        return f"a PySpark {kind.__name__}"
    library = _LIBRARIES.get(kind.__module__.split(".")[0])
    if library is not None:
        return "a Polars expression" if kind.__name__ == "Expr" else f"a {library} {kind.__name__}"
    article = "an" if kind.__name__[0].lower() in "aeiou" else "a"
    return f"{article} {kind.__name__}"


def no_expression(given: object) -> str:
    """Why something is no expression.

    >>> print(no_expression(True))
    True is neither SQL text nor a Polars expression; wrap a constant in pl.lit(...)
    """
    text = f"{named(given)} is neither SQL text nor a Polars expression"
    if _is_spark_column(given):
        return f"{text}; write it as text, such as 'amount > 0', or with Polars, such as pl.col('amount') > 0"
    if isinstance(given, dict):
        return f"{text}; give its items as named arguments, as in with_columns(cents='amount * 100')"
    if _is_function(given):
        return f"{text}; a Python function over rows is .map_batches(function)"
    if _is_frame(given) or type(given).__name__ == "Series":
        return f"{text}; it has rows of its own: to look values up in a table, use .join_static(table, on='id')"
    return f"{text}; wrap a constant in pl.lit(...)"


def no_aggregate(given: object) -> str:
    """Why something is no aggregate.

    >>> print(no_aggregate("amount"))
    'amount' is not an aggregate; use md.count(), md.sum('amount'), ... or an instance of a subclass of md.Aggregator
    """
    text = f"{named(given)} is not an aggregate"
    usual = "use md.count(), md.sum('amount'), ... or an instance of a subclass of md.Aggregator"
    if _is_function(given) and getattr(given, "__module__", "").startswith("meander.aggregates"):
        return f"{text}; call it: md.{getattr(given, '__name__', '')}(...)"
    if isinstance(given, type):
        return f"{text}; make an instance of it: {given.__name__}('amount')"
    if isinstance(given, dict):
        return f"{text}; write one argument per aggregate, as in aggregate(md.sum('amount').alias('total'), md.count())"
    if isinstance(given, list | tuple):
        return f"{text}; give its items one by one, with aggregate(*aggregates)"
    if type(given).__name__ == "Expr":
        return f"{text}, since it says nothing of how two states are merged; {usual}"
    return f"{text}; {usual}"


def no_column_name(given: object) -> str:
    """Why something is no column's name."""
    hint = "; write the column's name as text" if _is_spark_column(given) or type(given).__name__ == "Expr" else ""
    return f"{named(given)} is not a column's name{hint}"


def no_source(given: Any) -> str:
    """The message for a value that is no source."""
    text = f"{named(given)} is no source"
    if isinstance(given, str | os.PathLike):
        return f"{text}; to read files write md.files({os.fspath(given)!r}, format='json', schema={{'customer': 'string'}})"
    if _is_spark_frame(given):
        return (
            f"{text}; write md.spark_stream(df) for a streaming DataFrame; a table that does not grow is for .join_static(table, on='id')"
        )
    if _is_frame(given):
        return f"{text}, since it does not grow; write it into a folder for md.files(...), or use it with .join_static(table, on='id')"
    if _is_function(given) or isinstance(given, type):
        name = getattr(given, "__name__", "")
        ours = getattr(given, "__module__", "").startswith("meander.")
        return f"{text}; call it: md.{name}(...)" if ours else f"{text}; sources are md.files, md.spark_stream, md.generator"
    if hasattr(given, "publish"):
        return f"{text}, but a sink; it ends a stream: stream.sink('out', ...)"
    if isinstance(given, list | tuple):
        return f"{text}; give every part a source of its own, and bring them together with .union(other)"
    return f"{text}; sources are md.files, md.spark_stream, md.generator"


def no_sink(given: Any) -> str:
    """The message for a value that is no sink."""
    text = f"{named(given)} is no sink"
    if isinstance(given, str | os.PathLike):
        return f"{text}; to write files write md.parquet({os.fspath(given)!r})"
    if _is_function(given) or isinstance(given, type):
        name = getattr(given, "__name__", "")
        if getattr(given, "__module__", "").startswith("meander."):
            return f"{text}; call it: md.{name}(...)"
        return f"{text}; write md.foreach_batch(function), which calls it with the frame and the epoch"
    if hasattr(given, "cursor"):
        return f"{text}, but a source; it begins a stream: flow.source('in', ...)"
    return f"{text}; sinks are md.parquet, md.foreach_batch, md.console, md.memory, md.discard"


def no_stream(given: object) -> str:
    """Why something is no stream."""
    text = f"{named(given)} is not a stream"
    if isinstance(given, list | tuple):
        return f"{text}; give its items one by one, as in .union(a, b)"
    if _is_frame(given) or _is_spark_frame(given):
        return f"{text}; for a table that does not change there is join_static"
    return f"{text}; give what flow.source(...) or an operator returned"


def no_table(given: object) -> str:
    """Why something is no table that a stream can be joined with."""
    text = f"{named(given)} is no table; give a polars DataFrame, the path of a Parquet or CSV file, or a function"
    return f"{text}; pl.from_pandas(table) makes one" if named(given) == "a pandas DataFrame" else text


def no_path(what: str, given: object, example: str) -> str:
    """Why something is no path of a folder."""
    return f"{what}: {named(given)} is not the path of a folder; write {example}"


def no_session(given: object) -> str:
    """Why something is no Spark session."""
    return f"spark={named(given)}: give a Spark session, such as md.spark(master='local[4]'), or a master's name, such as 'local[4]'"


def _is_function(value: object) -> bool:
    return callable(value) and hasattr(value, "__name__") and not isinstance(value, type)


def _is_spark_column(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.") and type(value).__name__ == "Column"


def _is_spark_frame(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.") and type(value).__name__ == "DataFrame"


def _is_frame(value: object) -> bool:
    kind = type(value)
    return kind.__module__.split(".")[0] in _LIBRARIES and kind.__name__ in ("DataFrame", "LazyFrame", "Table")
