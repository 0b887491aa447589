"""What a store says of its flow without owning it: the manifest, the epochs that can be read, whether a live run holds it.

Reads only: nothing is created, changed or left behind, also where there is no store.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from meander.clock import SystemClock
from meander.errors import ConfigError
from meander.state.lease import live_owner
from meander.state.log import entries_after, newest_generation, read_manifest, read_snapshot, snapshots
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
    """Whether a live process holds the newest generation's lock, or renews its lease (which takes a few seconds to deny).

    Asks for a shared lock and lets go of it at once: neither the file nor a lock that somebody holds changes.
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
    except BlockingIOError:
        return Owner(True, name)
    finally:
        os.close(handle)
    return Owner(False, name)


def readable_epochs(store: Store, newest: Manifest) -> list[int]:
    """The epochs whose state can be read: known to the log, with all their segments still there."""
    there = set(store.list("segments/"))
    oldest = next((found for position, generation in snapshots(store) if (found := read_snapshot(store, generation, position))), None)
    for base in (Manifest(), oldest):  # the log from its beginning, where it still has one
        state, epochs = base or Manifest(), {}
        if state.epoch:
            epochs[state.epoch] = state.segment_names() <= there
        for entry in entries_after(store, state):
            state = state.apply(entry)
            if state.epoch:  # the last entry of an epoch counts: a compaction has the same rows in other segments
                epochs[state.epoch] = state.segment_names() <= there
        if state.position >= newest.position:
            return [epoch for epoch, readable in sorted(epochs.items()) if readable]
    return [newest.epoch] if newest.epoch else []  # the log moved on under us; the newest was just read


def check_epoch(store: Store, newest: Manifest, epoch: int) -> None:
    """ConfigError where the state of an epoch cannot be read."""
    epochs = readable_epochs(store, newest)
    if epoch in epochs:
        return
    if not epochs:
        raise ConfigError(f"store {store.url}: there is no epoch {epoch}: the flow has not finished one yet")
    why = "is not retained any more" if 0 < epoch < epochs[0] else "is not there"
    raise ConfigError(f"store {store.url}: epoch {epoch} {why}; epochs {epochs[0]} to {epochs[-1]} can be read")
