"""Whatever can be in a plan, or can show its state, has a kind: a class that was forgotten would be stored by its name in Python."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any, Protocol

import meander
from meander.aggregates import Agg
from meander.aggregates.changing import OverChanges
from meander.processor import Processor
from meander.stored.kinds import all_kinds

BASES = {Agg, OverChanges}


def classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(meander.__path__, "meander."):
        if not module.name.endswith("__main__"):
            for found in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(found) and found.__module__ == module.name:
                    yield found


def has(kind: type, *names: str) -> bool:
    return all(callable(getattr(kind, name, None)) for name in names)


def must_have_a_kind(found: Any) -> bool:
    if found in BASES or Protocol in found.__bases__ or issubclass(found, Processor):
        return False
    is_operator = has(found, "output_schema", "describe", "canonical")
    is_end = has(found, "describe", "canonical") and (has(found, "cursor", "read") or has(found, "publish", "encode"))
    is_reader = has(found, "show") and found.__name__.endswith("Reader")
    return is_operator or is_end or is_reader or issubclass(found, Agg)


def test_every_operator_source_sink_aggregate_and_reader_has_a_kind() -> None:
    wanted = {found for found in classes() if must_have_a_kind(found)}
    known = {kind.type for kind in all_kinds()}
    assert len(wanted) > 50
    assert not sorted(found.__qualname__ for found in wanted - known)
