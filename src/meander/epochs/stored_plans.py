"""Where a store keeps plans, by which names, and how one is read."""

from __future__ import annotations

import hashlib

from meander.connect.kinds import register_all
from meander.epochs.parts import in_force
from meander.errors import Corrupted
from meander.plan.documents import read_plan
from meander.plan.graph import Plan
from meander.state.manifest import Json
from meander.state.stores.contract import Store

PLANS, KNOWN = "plan/", ".known"


def known_name(digest: str) -> str:
    """The mark that a flow of this digest was started on the store, or in force there."""
    return f"{PLANS}{digest}{KNOWN}"


def is_known(store: Store, digest: str) -> bool:
    return store.get(known_name(digest)) is not None


def started_name(stored: Json) -> str:
    """The plan that goes on, with the folders that it had at the last start."""
    return f"{PLANS}{'.'.join(filter(None, in_force(stored)))}.started"


def packed_name(plan: bytes) -> str:
    """Where the store keeps the document of a plan that a modification has made, or will go back to."""
    return f"{PLANS}{hashlib.sha256(plan).hexdigest()[:32]}.packed"


def find_packed(store: Store, stored: Json) -> tuple[str, bytes] | None:
    """The document of the plan that a log entry names, and its name; None where the store has none."""
    for name in (started_name(stored), *([stored["packed"]] if "packed" in stored else [])):
        if (data := store.get(name)) is not None:
            return name, data
    return None


def read_packed(store: Store, name: str, data: bytes) -> Plan:
    """The plan of a stored document; Corrupted where it is not the one that was stored under this name."""
    if name.endswith(".packed") and packed_name(data) != name:
        raise Corrupted(f"store {store.url}: the plan '{name}' is damaged: its content is not the one that its name stands for")
    register_all()
    return read_plan(data, f"store {store.url}: '{name}'")
