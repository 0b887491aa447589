"""Log entries for tests that append their own: with everything that an entry must have."""

from __future__ import annotations

from typing import Any


def epoch_entry(number: int, **fields: Any) -> dict[str, Any]:
    """The entry of an epoch in which nothing happened but what ``fields`` say."""
    return {
        "kind": "epoch",
        "epoch": number,
        "now": 0.0,
        "plan": {},
        "splits": [],
        "offsets": {},
        "seen": {},
        "batch": None,
        "routing": {},
        "asked": 1,
        "tables": {},
        "forgets": [],
        "restarts": [],
        "drops": [],
        "floors": {},
        "quiet": {},
        "times": {},
        "flushed": {},
        "staged": {},
        "counts": {"epochs": 1},
        **fields,
    }
