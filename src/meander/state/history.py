"""The modifications of a flow, as its store remembers them: author, changes and result.

Records are put once each: ``modifications/<id>.request``, ``.verdict``, and ``.reversal`` where one was taken back later.
"""

from __future__ import annotations

from typing import Any

from meander.state.formats import KEY, REQUEST, REVERSAL, VERDICT, Format
from meander.state.stores.contract import Store

Json = dict[str, Any]
_ENDINGS = {REQUEST: "request", VERDICT: "verdict", REVERSAL: "reversal"}


FOLDER = "modifications/"


def record_name(format: Format, identity: str) -> str:
    """Where one of the three records of a modification is.

    >>> record_name(VERDICT, "m1")
    'modifications/m1.verdict'
    """
    return f"{FOLDER}{identity}.{_ENDINGS[format]}"


def read_record(store: Store, format: Format, identity: str) -> Json | None:
    """One of the records of a modification, without its format. None where it is not there."""
    name = record_name(format, identity)
    data = store.get(name)
    if data is None:
        return None
    found = format.read(data, name)
    del found[KEY]
    return found


def read_history(store: Store) -> list[Json]:
    """All modifications that were ever tried, the oldest first."""
    found = []
    for name in store.list(FOLDER):
        if name.endswith(f".{_ENDINGS[REQUEST]}"):
            identity = name.removeprefix(FOLDER).removesuffix(f".{_ENDINGS[REQUEST]}")
            record = read_record(store, REQUEST, identity) or {}
            verdict = read_record(store, VERDICT, identity) or {"verdict": "not tried"}
            found.append({**record, **verdict, **(read_record(store, REVERSAL, identity) or {})})
    return sorted(found, key=lambda record: (record.get("at", 0.0), record.get("id", "")))
