"""Whether a store's place can be a store at all; asked before anything is read or made there."""

from __future__ import annotations

from meander.errors import ConfigError
from meander.state.stores.contract import Store


def refuse_file(store: Store) -> None:
    """ConfigError where a file stands at the store's place: every read of it would fail with a
    message that does not help."""
    place = store.local("")
    if place is not None and place.exists() and not place.is_dir():
        raise ConfigError(f"store {store.url}: this is a file; a store is a folder: name another")
