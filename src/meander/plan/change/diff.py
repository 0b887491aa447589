"""The differences between two plans, in words: for a flow that is started on the store of another
one.

Compares records (``Plan.record``), so that the plan that made the store need not be there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHOWN = 3


def explain_difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first differences, and whether they may come from another version of Python or Polars alone."""
    found = differences(before, after)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    changed = [name for name in _versions_that_matter(before, after) if before["made_with"].get(name) != after["made_with"][name]]
    if not changed:
        return "; ".join(found[:_SHOWN]) + more
    was, now = (", ".join(f"{name} {record['made_with'].get(name)}" for name in changed) for record in (before, after))
    return f"{'; '.join(found[:_SHOWN])}{more} (the store was made with {was} and this is {now}, which alone can make it look different)"


def _versions_that_matter(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Whose version can be all that is different: Python's where code is known as bytecode, Polars' where expressions differ."""
    pairs = [(was, now) for name, now in after["operators"].items() if (was := before["operators"].get(name)) is not None]
    bytecode = any(was["code"] != now["code"] and (was["compiled"] or now["compiled"]) for was, now in pairs)
    expressions = any(was["does"] != now["does"] or was["columns"] != now["columns"] for was, now in pairs)
    return [name for name, matters in (("Python", bytecode), ("Polars", expressions)) if matters]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One phrase per operator that differs, from sources to sinks; columns that follow from an operator before it are not told."""
    old, new = before["operators"], after["operators"]
    found = [] if before["flow"] == after["flow"] else [f"the flow was '{before['flow']}' and is '{after['flow']}'"]
    other_columns: set[str] = set()
    for name, op in new.items():
        if name not in old:
            found.append(f"{op['kind']} '{name}' is new")
            continue
        if op["columns"] != old[name]["columns"]:
            other_columns.add(name)
        phrase = _changed(name, old[name], op, follows=not other_columns.isdisjoint(op["inputs"]))
        if phrase is not None:
            found.append(phrase)
    found += [f"{op['kind']} '{name}' is not there any more" for name, op in old.items() if name not in new]
    return found


def _parts(was: dict[str, Any], now: dict[str, Any]) -> str:
    """Which functions, classes and names are others, where that is more than the operator's own function."""
    old, new = was["code_parts"], now["code_parts"]
    own = next(iter(new), None)
    if own not in old:  # another function under another name: there is nothing to compare it with
        return ""
    if changed := [part for part in parts_that_differ(old, new) if part != own]:
        return f": {_some(changed)} changed"
    came, gone = [part for part in new if part not in old], [part for part in old if part not in new]
    return f": it uses {_some(came)}" if came else f": it does not use {_some(gone)}" if gone else ""


def parts_that_differ(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Functions, classes and names that both have, and that are not the same."""
    return [part for part, digest in new.items() if part in old and old[part] != digest]


def _some(parts: list[str]) -> str:
    return ", ".join(parts[:_SHOWN]) + (f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else "")


def _changed(name: str, was: dict[str, Any], now: dict[str, Any], follows: bool) -> str | None:
    if was["kind"] != now["kind"]:
        return f"'{name}' was a {was['kind']} and is a {now['kind']}"
    if was["inputs"] != now["inputs"]:
        return f"{now['kind']} '{name}' read {', '.join(was['inputs'])} and reads {', '.join(now['inputs'])}"
    if was["code"] != now["code"]:
        return f"{now['kind']} '{name}' has other Python code{_parts(was, now)}"
    if was["does"] != now["does"]:
        texts = f" (was: {was['text']}; is: {now['text']})" if was["text"] != now["text"] else ""
        return f"{now['kind']} '{name}' differs{texts}"
    if was["columns"] != now["columns"] and not follows:
        old, new = ([f"{column} {dtype}" for column, dtype in op["columns"]] for op in (was, now))
        gone, added = ", ".join(c for c in old if c not in new), ", ".join(c for c in new if c not in old)
        return f"{now['kind']} '{name}' has other columns ({gone or 'the same'} → {added or 'in another order'})"
    return None
