"""The modifications of a flow, as its store remembers them: who asked for what, and what has become of it.

Records are put once each: ``modifications/<id>.request``, ``.verdict``, and ``.reversal`` where one was taken back later.
"""

from __future__ import annotations

import json
from typing import Any

from meander.state.stores.contract import Store

Json = dict[str, Any]


def read_record(store: Store, name: str) -> Json | None:
    data = store.get(name)
    found: Json | None = None if data is None else json.loads(data)
    return found


def read_history(store: Store) -> list[Json]:
    """All modifications that were ever tried, the oldest first."""
    found = []
    for name in store.list("modifications/"):
        if name.endswith(".request"):
            stem = name.removesuffix(".request")
            record = read_record(store, name) or {}
            verdict = read_record(store, f"{stem}.verdict") or {"verdict": "not tried"}
            found.append({**record, **verdict, **(read_record(store, f"{stem}.reversal") or {})})
    return sorted(found, key=lambda record: (record.get("at", 0.0), record.get("id", "")))
