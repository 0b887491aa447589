"""Which Polars expressions are row-local: each output row is a function of its own input row and nothing else.

The engine decides how rows are cut into batches, and may cut them in another way in the next run.
So the results of an expression that reads other rows (a sum, a shift, a rank) would depend on the
cut. Callers refuse expressions for which ``batch_dependence`` names a reason. Conservative: a node
that is not known to be row-local is named.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import polars as pl

_CHILDREN: dict[str, tuple[str, ...]] = {
    "RenameAlias": ("expr",),
    "Cast": ("expr",),
    "BinaryExpr": ("left", "right"),
    "Ternary": ("predicate", "truthy", "falsy"),
}
_LEAVES = {"Column", "Literal", "Selector", "Field", "Element"}
_KNOWN_LOCAL = {"Boolean.IsIn", "Sql.IsIn", "ListExpr.Contains", "ArrayExpr.Contains", "Reinterpret"}
"""Functions that Polars cannot classify without a schema, and that are row-local."""
_RANDOM = {"ListExpr.Sample", "Random", "ListExpr.Shuffle"}
"""Row-local to Polars, but another result each time."""


def batch_dependence(expr: pl.Expr, schema: pl.Schema) -> str | None:
    """The first part of ``expr`` that looks at other rows (or is Python code), in words; None if there is none."""
    try:
        tree = json.loads(expr.meta.serialize(format="json"))
    except Exception:  # Polars raises several kinds here; the one cause left is a Python function inside
        return "a Python function"
    return _walk(tree, schema)


def _walk(tree: Any, schema: pl.Schema) -> str | None:
    if isinstance(tree, str):
        return None if tree in _LEAVES else f"{tree.lower()}()"
    if not isinstance(tree, dict) or len(tree) != 1:
        return "an expression of an unknown kind"
    kind, body = next(iter(tree.items()))
    if kind == "Literal" and isinstance(body, dict) and "Series" in body:
        return "a constant with rows of its own"
    if kind in _LEAVES:
        return None
    if kind == "Alias":  # written as a list: the expression, the name
        return _walk(body[0], schema)
    if kind == "KeepName":
        return _walk(body, schema)
    if kind == "StructEval":
        return _first([body["expr"], *body["evaluation"]], schema)
    if kind == "Function":
        return _function(body, schema)
    if kind == "AnonymousFunction":
        return "a Python function"
    if kind == "Agg":
        return f"{_name(body).lower()}()"
    if kind == "Eval" and _name(body["variant"]) in ("List", "ListAgg", "Array", "ArrayAgg"):
        # An expression over one row's list sees only that row, unless it is random.
        return "something random" if '"Random"' in json.dumps(body["evaluation"]) else _walk(body["expr"], schema)
    if kind not in _CHILDREN:
        return f"{kind.lower()}(...)"
    return _first((body[child] for child in _CHILDREN[kind]), schema)


def _first(trees: Iterable[Any], schema: pl.Schema) -> str | None:
    return next((found for tree in trees if (found := _walk(tree, schema)) is not None), None)


def _function(body: dict[str, Any], schema: pl.Schema) -> str | None:
    name = _name(body["function"])
    if name in _RANDOM:
        return f"{name}(), which is random"
    # A constant list of values to look up arrives as a Series of its own; only as a function's input is that harmless.
    if (found := _first((child for child in body["input"] if not _is_literal(child)), schema)) is not None:
        return found
    if name in _KNOWN_LOCAL:
        return None
    local = _separable(body, [child if _is_literal(child) else {"Column": "x"} for child in body["input"]])
    if local is None:  # some functions are resolved by the types of their inputs: stand-ins must have them
        local = _separable(body, [_stand_in(child, schema) for child in body["input"]])
    if name == "StringExpr.Strptime" and not local:
        return "parsing of dates or times without a format (it is guessed from the first rows: give a format)"
    return None if local else f"{name}()"


def _separable(body: dict[str, Any], inputs: list[Any]) -> bool | None:
    """Polars' own word on the function alone; None where it has none."""
    try:
        return _read({"Function": {**body, "input": inputs}}).meta.is_row_separable()
    except BaseException as error:  # of many kinds, and all mean the same here; a panic of Polars is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            return None
        raise


def _stand_in(tree: Any, schema: pl.Schema) -> Any:
    """A null of the type the expression has."""
    if _is_literal(tree):
        return tree
    try:
        dtype = schema.to_frame().select(_read(tree).alias("x")).schema["x"]
    except Exception:  # an expression that has no type is refused with its reason when the operator's schema is derived
        return tree
    return json.loads(pl.lit(None, dtype=dtype).meta.serialize(format="json"))


def _read(tree: Any) -> pl.Expr:
    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def _is_literal(tree: Any) -> bool:
    return isinstance(tree, dict) and "Literal" in tree


def _name(function: Any) -> str:
    """``StringExpr.Strptime`` of the nested one-key objects Polars writes a function as."""
    if isinstance(function, str):
        return function
    if isinstance(function, dict) and len(function) == 1:
        outer, inner = next(iter(function.items()))
        if outer.endswith("Expr") or outer in ("Boolean", "Sql"):
            return f"{outer}.{_name(inner)}"
        return str(outer)
    return "function"
