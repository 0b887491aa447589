"""Finds uses of clocks and random numbers in a function's code: such a function gives another
result each time it runs. Pure.

Looks at the names in a function's own code and in functions nested in it. Calls of functions
elsewhere are not followed, and a generator with a seed does not count.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from typing import Any

_CALLS: dict[str, frozenset[str]] = {
    "random": frozenset(
        "random randint randrange uniform choice choices shuffle sample gauss normalvariate betavariate getrandbits randbytes".split()
    ),
    "secrets": frozenset("token_bytes token_hex token_urlsafe randbelow randbits choice".split()),
    "uuid": frozenset({"uuid1", "uuid4"}),
    "time": frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"}),
    "datetime": frozenset({"now", "utcnow", "today"}),
    "os": frozenset({"urandom"}),
    "numpy.random": frozenset("rand randn randint random uniform normal choice shuffle permutation".split()),
}


def chance_in(value: Any) -> tuple[str, ...]:
    """The calls in it that go by chance or by the clock, sorted.

    >>> import random
    >>> chance_in(lambda frame: frame.filter(random.random() < 0.5))
    ('random.random',)
    >>> chance_in(lambda frame: frame.sample(10, seed=random.Random(7).randint(0, 9)))
    ()
    """
    return tuple(sorted(set(_found(value))))


def _found(value: Any) -> list[str]:
    if isinstance(value, functools.partial):
        return _found(value.func)
    if isinstance(value, types.MethodType):
        return _found(value.__func__)
    if isinstance(value, type):
        return [name for method in vars(value).values() if isinstance(method, types.FunctionType) for name in _found(method)]
    if not isinstance(value, types.FunctionType):
        call = getattr(type(value), "__call__", None)  # noqa: B004  # its code is wanted, not whether it has one
        return _found(call) if isinstance(call, types.FunctionType) else []
    cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=False))
    known = {**value.__globals__, **{name: cell.cell_contents for name, cell in cells.items() if _is_full(cell)}}
    return _in_code(value.__code__, known)


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _in_code(code: types.CodeType, known: dict[str, Any]) -> list[str]:
    """Follows every name that the code loads through the attributes that are taken of it at once."""
    found: list[str] = []
    thing: Any = None
    imported = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"}
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST"):
            inside = step.opname == "LOAD_FAST"
            thing = (sys.modules.get(step.argval) if step.argval in imported else None) if inside else known.get(step.argval)
            found += _by_itself(thing)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and thing is not None:
            origin = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__ if isinstance(thing, type) else ""
            found += [f"{origin}.{step.argval}"] if step.argval in _CALLS.get(origin, ()) else []
            thing = _attribute(thing, step.argval) if origin else None
        else:
            thing = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += _in_code(constant, known)
    return found


def _attribute(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:  # a module that loads its parts when they are asked for may fail as it likes: here nobody needs them
        return None


def _by_itself(thing: Any) -> list[str]:
    """A function that was imported by its own name; those of ``random`` are methods of a generator without a seed."""
    if not isinstance(thing, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return []
    owner = getattr(thing, "__self__", None)
    origin = thing.__module__ or ""
    if owner is not None and not isinstance(owner, types.ModuleType):
        origin = type(owner).__module__
    return [f"{origin}.{thing.__name__}"] if thing.__name__ in _CALLS.get(origin, ()) else []
