"""Expressions as text that tells one from another, and the Python functions in them, which count by their code.

Polars keeps the pickles of functions in its own form of an expression. The bytes of a pickle follow from the place of the function
in its file, and from the order of sets, so they are another text for the same function. Called by ``plan.operators`` and ``plan.code``.
"""

from __future__ import annotations

import io
import json
import pickle
import types
import warnings
from collections.abc import Iterator
from typing import Any

import polars as pl

_PICKLED = b"PLPY"
_PICKLE = b"\x80"
_VERSION = 2
"""Bytes before the pickle that have Python's version."""


def text_of_expression(expr: pl.Expr) -> str:
    """Polars' JSON, without the functions. JSON has no infinity and no NaN: an expression that has some is shown, too.

    >>> text_of_expression(pl.lit(float("inf"))) == text_of_expression(pl.lit(float("-inf")))
    False
    """
    text = _as_json(expr)
    if _PICKLED in (packed := expr.meta.serialize()):
        return json.dumps(_without_functions(json.loads(text)), separators=(",", ":"))
    return text if "null" not in text or _is_whole(text, packed) else f"{text}\n{expr}"


def functions_of(expr: pl.Expr) -> list[Any]:
    """The user's functions in an expression, with the settings that Polars keeps beside them."""
    if _PICKLED not in expr.meta.serialize():
        return []
    found: list[Any] = []
    for pickled in _functions(json.loads(_as_json(expr))):
        if (function := _unpickled(pickled)) is not None:
            found.extend(_given(function[1]))
    return found


def _as_json(expr: pl.Expr) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return expr.meta.serialize(format="json")


def _is_whole(text: str, packed: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return pl.Expr.deserialize(io.StringIO(text), format="json").meta.serialize() == packed
        except (pl.exceptions.PolarsError, ValueError):
            return False


def _bytes(tree: Any) -> bytes | None:
    """The bytes of a function, where a part of the JSON is that."""
    if isinstance(tree, list) and tree[: len(_PICKLED)] == list(_PICKLED):
        return bytes(tree)
    return None


def _without_functions(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _without_functions(one) for name, one in tree.items()}
    if (found := _bytes(tree)) is not None and (function := _unpickled(found)) is not None:
        return ["function", function[0]]
    return [_without_functions(one) for one in tree] if isinstance(tree, list) else tree


def _functions(tree: Any) -> Iterator[bytes]:
    if isinstance(tree, dict):
        for one in tree.values():
            yield from _functions(one)
    elif (found := _bytes(tree)) is not None:
        yield found
    elif isinstance(tree, list):
        for one in tree:
            yield from _functions(one)


def _unpickled(found: bytes) -> tuple[str, Any] | None:
    """A function with the header that Polars gives it, but for the version of Python; None where it is none after all.

    This process has made it, or trusts who has.
    """
    at = found.find(_PICKLE)
    while at >= 0:
        try:
            return found[: at - _VERSION].hex(), pickle.loads(found[at:])
        except Exception:  # these bytes were not the beginning
            at = found.find(_PICKLE, at + 1)
    return None


def _given(value: Any) -> list[Any]:
    """The functions and settings behind the wrappers of Polars."""
    if isinstance(value, types.FunctionType) and _is_of_polars(value):
        return [one for cell in value.__closure__ or () for one in _given(cell.cell_contents)]
    if not isinstance(value, type | types.FunctionType) and _is_of_polars(type(value)):
        return [one for held in getattr(value, "__dict__", {}).values() for one in _given(held)]
    return [value]


def _is_of_polars(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "polars"
