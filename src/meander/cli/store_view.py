"""Reads a store without owning it: its flow's manifest, and whether a live run holds it.

Nothing is created, changed or left behind, also if there is no store.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from meander.clock import SystemClock
from meander.errors import Busy, ConfigError
from meander.state.log import newest_generation, read_manifest
from meander.state.manifest import Manifest
from meander.state.stores.contract import Store
from meander.state.stores.lease import live_owner
from meander.state.stores.opening import checked_store


@dataclass(frozen=True)
class Owner:
    """The run that holds a store."""

    live: bool
    name: str
    """The owner as written in the lock, such as "process 123"; empty if it says nothing."""


def open_existing(url: str) -> tuple[Store, Manifest]:
    """A store that holds a flow, and its newest manifest."""
    store = checked_store(url)
    manifest = read_manifest(store)
    if manifest.position < 0:
        folder = store.local("")
        if folder is not None and not folder.exists():
            raise ConfigError(
                f"store {store.url}: there is no flow in it (there is no such folder); give the folder that was the flow's store=. "
                "A flow that is just starting makes it when its Spark is up"
            )
        if folder is not None and any((folder / name).exists() for name in ("probe", "lock")):
            raise ConfigError(
                f"store {store.url}: a flow was started in it and has no epoch yet; if it is just starting, look again in a moment"
            )
        raise ConfigError(f"store {store.url}: there is no flow in it; give the folder that was the flow's store=")
    return store, manifest


def owner_of(store: Store) -> Owner:
    """Whether a live process holds the newest generation's lock, or renews its lease (which takes a few seconds to deny).

    Takes the lock and releases it at once: neither the file nor a lock of another process changes.
    Replicas hold theirs together.
    """
    generation = newest_generation(store)
    path = store.local(f"lock/{generation:08d}")
    if path is None:
        owner = live_owner(store, generation, SystemClock()) if generation else None
        return Owner(owner is not None, owner or "")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Owner(False, "")
    try:
        name = os.read(handle, 200).decode(errors="replace").strip()
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Owner(True, name)
    finally:
        os.close(handle)
    return Owner(False, name)


def refuse_busy(url: str) -> None:
    """Busy where a live run holds the store: a look that takes no time, before Spark is waited for."""
    store = checked_store(url)
    if (owner := owner_of(store)).live:
        raise Busy(
            f"store {store.url} is in use by a live run ({owner.name or 'unknown process'}); nothing was touched. "
            "Stop that run first, or add --takeover if its machine is known to be gone or hung."
        )
