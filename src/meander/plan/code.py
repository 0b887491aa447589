"""A stable text for Python code in a plan: equal code, equal text, in every process.

Used by plan digests. Covers a function's bytecode, constants, names, defaults and closure; code that a
function calls elsewhere is not followed. Another version of Python compiles to other bytecode, and so to another text. Source text would
not, but it is not always there, not always that of the code that runs, and changes with every comment.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any


def code_of(value: Any) -> str:
    """A short hex text over what ``value`` (a function, or an object with ``__call__``) would execute."""
    return hashlib.sha256(_describe(value, 0).encode()).hexdigest()[:32]


def _describe(value: Any, depth: int) -> str:
    if depth > 8:  # a closure that reaches itself
        return "..."
    if isinstance(value, types.CodeType):
        parts = [value.co_code.hex(), value.co_names, value.co_varnames, [_describe(c, depth + 1) for c in value.co_consts]]
        return f"code{parts}"
    if isinstance(value, functools.partial):
        return f"partial({_describe(value.func, depth + 1)}, {_describe(value.args, depth + 1)}, {_describe(value.keywords, depth + 1)})"
    if isinstance(value, types.MethodType):
        return f"method({_describe(value.__func__, depth + 1)}, {_describe(value.__self__, depth + 1)})"
    if isinstance(value, types.FunctionType):
        cells = [_describe(cell.cell_contents, depth + 1) for cell in value.__closure__ or ()]
        return f"function({_describe(value.__code__, depth + 1)}, {_describe(value.__defaults__, depth + 1)}, {cells})"
    if isinstance(value, (frozenset, set)):  # their order changes from process to process
        return f"set{sorted(_describe(item, depth + 1) for item in value)}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}{[_describe(item, depth + 1) for item in value]}"
    if isinstance(value, dict):
        return f"dict{[(_describe(k, depth + 1), _describe(v, depth + 1)) for k, v in value.items()]}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type(...))):
        return repr(value)
    if isinstance(value, (types.ModuleType, types.BuiltinFunctionType, type)):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    # Any other object: its class and its plain attributes. Never repr(), which may hold an address.
    attributes = _describe(vars(value), depth + 1) if hasattr(value, "__dict__") else ""
    call = _describe(type(value).__call__, depth + 1) if callable(value) else ""
    return f"{type(value).__module__}.{type(value).__qualname__}({attributes}, {call})"
