"""What a store says of its flow without owning it: the manifest, and whether a live run holds it.

Reads only: nothing is created, changed or left behind, also where there is no store.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from meander.errors import ConfigError
from meander.state.log import newest_generation, read_manifest
from meander.state.manifest import Manifest
from meander.state.store import Store, open_store


@dataclass(frozen=True)
class Owner:
    """Who runs on a store."""

    live: bool
    name: str
    """What the lock says, such as "process 123"; empty where it says nothing."""


def open_existing(url: str) -> tuple[Store, Manifest]:
    """A store that holds a flow, and its newest manifest."""
    store = open_store(url)
    manifest = read_manifest(store)
    if manifest.position < 0:
        folder = store.local("")
        there = "" if folder is None or folder.exists() else " (there is no such folder)"
        raise ConfigError(f"store {store.url}: there is no flow in it{there}; give the folder that was the flow's store=")
    return store, manifest


def owner_of(store: Store) -> Owner:
    """Whether a live process holds the newest generation's lock.

    Asks for a shared lock and lets go of it at once: neither the file nor a lock that somebody holds changes.
    """
    path = store.local(f"lock/{newest_generation(store):08d}")
    if path is None:
        return Owner(False, "")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Owner(False, "")
    try:
        name = os.read(handle, 200).decode(errors="replace").strip()
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Owner(True, name)
    finally:
        os.close(handle)
    return Owner(False, name)
