"""Every public name, and every public method of a public class, says what it is, with an example whose names exist."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import meander as md

CLASSES = (md.Flow, md.Stream, md.KeyedStream, md.ConnectedStreams, md.WindowedStream, md.Run, md.Replicas)
_SHOWN = re.compile(r"``([^`]+)``")
_OURS = {name for owner in (*CLASSES, md.Processor, md.Aggregator, md.Agg) for name in dir(owner)}
_OTHERS = {"frame", "table", "to_pandas", "to_pylist", "drop_nulls", "col", "url", "height", "load", "select", "read_parquet", "format"}
"""Methods of what ours give: tables, frames, Spark sessions."""


def document(owner: object) -> str:
    """Its own: what a class inherits, or a dataclass makes, does not count."""
    found = owner.__dict__.get("__doc__") if isinstance(owner, type) else owner.__doc__
    return inspect.cleandoc(found or "")


def methods() -> Iterator[tuple[type, str]]:
    for owner in CLASSES:
        for name, value in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                yield owner, name
            assert value is not None


def code_in(text: str) -> list[str]:
    """What a docstring shows of code: inline, and as a session."""
    return _SHOWN.findall(text) + re.findall(r"^\s*(?:>>>|\.\.\.) ?(.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", md.__all__)
def test_a_public_name_has_an_example_of_itself(name: str) -> None:
    text = document(getattr(md, name))
    shown = code_in(text)
    assert any(re.search(rf"(\bmd\.|^|\W){name}\b", code) for code in shown), f"md.{name}: {text}"
    check_names(shown)


@pytest.mark.parametrize(("owner", "name"), list(methods()), ids=lambda given: getattr(given, "__name__", given))
def test_a_public_method_has_an_example_of_itself(owner: type, name: str) -> None:
    text = document(getattr(owner, name))
    shown = code_in(text)
    assert any(re.search(rf"\.{name}\(|\b{name}\(", code) for code in shown), f"{owner.__name__}.{name}: {text}"
    check_names(shown)


def check_names(shown: list[Any]) -> None:
    """What is named in examples is there, under that name."""
    for code in shown:
        assert set(re.findall(r"\bmd\.(\w+)", code)) <= set(md.__all__), code
        if re.match(r"(orders|flow|run|replicas|totals|bids|clicks|stream|people|posts|per_window)\b", code):
            called = set(re.findall(r"(?<!\bmd)(?<!\bpl)\.(\w+)\(", code))
            assert called <= _OURS | _OTHERS, (code, called - _OURS - _OTHERS)
