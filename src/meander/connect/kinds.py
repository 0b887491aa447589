"""The sources and sinks of this room, for readers of stored plans: the function here registers the kinds of all of them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from meander import connect


def register_all() -> None:
    """Import every module of the room. A plan may have a source that the flow that is started does not have."""
    for module in iter_modules(connect.__path__):
        import_module(f"{connect.__name__}.{module.name}")
