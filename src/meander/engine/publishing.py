"""From staged files to what sinks have: publishing what a log entry names, and looking at what none does yet. Spark-free.

What is committed must be published before anything else is: no later epoch may come first. So a sink that cannot take an epoch now (its
disk is full, its folder is away, its database does not answer), like a store that does not give the staged files, holds the flow up, and is
tried again until it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import polars as pl

from meander.clock import Clock
from meander.connect.arrow_ipc import read_staged
from meander.connect.partitioned import is_partitioned, read_partitioned
from meander.connect.sink import Sink, Staged, StagedFile, StagedGone
from meander.engine.epoch import Outcome
from meander.errors import ConfigError, Retryable, Unavailable
from meander.state.manifest import Manifest
from meander.state.store import Store

_FIRST_WAIT, _LONGEST_WAIT, _PATIENCE = 0.1, 2.0, 600.0
_LOG = logging.getLogger("meander")


class Patience:
    """Waits between the attempts to publish one epoch in one sink, and says so."""

    def __init__(self, clock: Clock, stops: Callable[[], bool] = lambda: False) -> None:
        """``stops``: whether the run is to end, and should not wait any longer."""
        self._clock, self._stops = clock, stops
        self._began: float | None = None
        self._wait = _FIRST_WAIT
        self._told = ""

    def wait(self, why: str, error: Exception) -> None:
        """Retryable where the patience is over."""
        now = self._clock.monotonic()
        self._began = now if self._began is None else self._began
        if self._stops() or now - self._began > _PATIENCE:
            raise Unavailable(f"{why}; the next start publishes it") from error
        if why != self._told:
            self._told = why
            _LOG.warning(f"{why}; trying again until it does: nothing is lost, and no later epoch is published first")
        self._clock.sleep(self._wait)
        self._wait = min(2 * self._wait, _LONGEST_WAIT)

    def is_over(self) -> None:
        """It was published."""
        if self._told:
            _LOG.warning("and now it does: the flow goes on")


def publish(
    store: Store,
    sinks: Mapping[str, Sink],
    manifest: Manifest,
    some: Sequence[str] | None = None,
    patience: Callable[[], Patience] | None = None,
) -> None:
    """The last epoch's output, of some sinks or of all. Redone on recovery: sinks take an epoch once.

    With ``patience`` what the environment is to blame for is waited for. Other errors are those of the flow, or of its functions.
    """
    for name, files in manifest.staged.items():
        if some is not None and name not in some:
            continue
        sink = sinks.get(name)
        if sink is None:
            raise ConfigError(
                f"epoch {manifest.epoch} has output for the sink '{name}', which this flow does not have; start it with that sink once"
            )
        held = None if patience is None else patience()
        while True:
            try:
                sink.publish(manifest.epoch, [_staged(store, StagedFile.from_json(file)) for file in files])
                break
            except (OSError, Retryable) as error:
                if held is None:
                    raise
                held.wait(f"epoch {manifest.epoch} is committed, and sink '{name}' ({sink.describe()}) does not take it: {error}", error)
        if held is not None:
            held.is_over()


def read_output(store: Store, outcome: Outcome) -> dict[str, pl.DataFrame]:
    """What an epoch that is not committed would publish, per sink."""
    found = {}
    for sink, files in outcome.staged.items():
        staged = [_staged(store, StagedFile.from_json(file)) for file in sorted(files, key=lambda file: int(file["slot"]))]
        frames = [read_partitioned(data) if is_partitioned(data) else read_staged(data) for data in (one.get() for one in staged)]
        found[sink] = pl.concat(frames) if frames else pl.DataFrame()
    return found


def _staged(store: Store, file: StagedFile) -> Staged:
    def get() -> bytes:
        data = store.get(file.name)
        if data is None:
            raise StagedGone(f"staged file '{file.name}' is named by the log but is not in store {store.url}")
        return data

    return Staged(file, get, store.local(file.name))
