"""Migration: how the owners of moved key groups come by their state. Pure.

State is in the store, and a new owner can work from there at once; what a strategy chooses is when its cache is filled.
"""

from __future__ import annotations

from meander.errors import ConfigError

STRATEGIES = ("eager", "lazy", "prefetch", "hybrid")


def check_strategy(name: str) -> None:
    if name not in STRATEGIES:
        raise ConfigError(f"strategy '{name}': there are {', '.join(STRATEGIES)}")
