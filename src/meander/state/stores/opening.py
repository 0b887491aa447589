"""Opening a store that is one, or may become one: asked before anything is read or made there.

A store says its format in an object of its own, ``format``, which is put before anything else and never changes within a format. Whatever
opens a store looks at it once. A store in which nothing else is yet has no flow, whether a start has died between this object and the
first log entry or not.
"""

from __future__ import annotations

from pathlib import Path

from meander.clock import Clock
from meander.errors import ConfigError, Retryable
from meander.state.formats import KEY, STORE
from meander.state.signs import parse
from meander.state.stores.contract import Store, open_store
from meander.version import VERSION

NAME = "format"
_ATTEMPTS = 8
_LEFT_BY_FLOWS = ("log/", "manifest/")


def checked_store(url: str | Path) -> Store:
    """The store at a URL. ConfigError where it is a file, or a store of a format that cannot be read here."""
    store = open_store(url)
    place = store.local("")
    if place is not None and place.exists() and not place.is_dir():
        raise ConfigError(f"store {store.url}: this is a file; a store is a folder: name another")
    check_format(store)
    return store


def check_format(store: Store) -> bool:
    """Whether a store says its format. ConfigError where that cannot be read here, or where a store that holds a flow says none."""
    data = store.get(NAME)
    if data is None and any(store.list(folder) for folder in _LEFT_BY_FLOWS):
        data = store.get(NAME)  # a first start may have come between the two looks
        if data is None:
            raise ConfigError(f"store {store.url} {STORE.refusal(None)}: use another store")
    if data is None:
        return False
    said = parse(data) or {}
    if (refusal := STORE.refusal(said.get(KEY))) is not None:
        made_by = f", which Meander {said['meander']} has made," if "meander" in said else ""
        raise ConfigError(f"store {store.url}{made_by} {refusal}")
    return True


def put_format(store: Store, clock: Clock) -> None:
    """Have a new store say its format, before anything else is put there. A store that says one must say one that is known here.

    It is put also where it can be read: the process that made it may have died before the object was durable, and without the object
    the store would be refused.
    """
    check_format(store)
    for attempt in range(_ATTEMPTS):
        try:
            if store.put_if_absent(NAME, STORE.write({"meander": VERSION})):
                return
            break
        except Retryable:
            if attempt == _ATTEMPTS - 1:
                raise
            clock.sleep(min(0.05 * 2**attempt, 2.0))
    check_format(store)  # another start was faster, or ours that was not answered is there
