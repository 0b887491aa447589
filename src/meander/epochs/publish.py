"""Publishes the staged files that a log entry names, and reads staged files that none names yet.

A committed epoch must be published before any later one. So a sink that cannot take an epoch now
(its disk is full, its folder is away, its database does not answer) holds the flow up and is tried
again, and so does a store that cannot read the staged files: see ``patience``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import polars as pl

from meander.connect.arrow_ipc import read_staged
from meander.connect.partitioned import is_partitioned, read_partitioned
from meander.connect.sink import Sink, Staged, StagedFile, StagedGone
from meander.epochs.decision import Outcome
from meander.epochs.in_force import InForce
from meander.epochs.patience import Patience
from meander.epochs.siblings import Siblings
from meander.errors import ConfigError, Retryable, Unavailable
from meander.state.manifest import Manifest
from meander.state.stores.contract import Store


class Publisher:
    """One loop's: step 4 of an epoch."""

    def __init__(self, store: Store, in_force: InForce, patience: Patience, siblings: Siblings) -> None:
        self._store, self._in_force, self.patience, self._siblings = store, in_force, patience, siblings
        self.published = 0
        """The last epoch whose output all sinks have, as far as is known here."""

    def publish(self, manifest: Manifest, sinks: Sequence[str] | None = None) -> None:
        """Make the last epoch's output visible, of some sinks or of all; where a sink does not take it, wait and do it again."""
        siblings = self._siblings
        work = partial(publish, self._store, self._in_force.sinks, manifest, sinks)
        # Before each wait it leads no more: a sink that does not answer us may answer another replica.
        self.patience.persevere(work, siblings.look_again, siblings.step_down, lambda: siblings.is_leaving)
        if sinks is None:
            self.published = manifest.epoch


def publish(store: Store, sinks: Mapping[str, Sink], manifest: Manifest, some: Sequence[str] | None = None) -> None:
    """The last epoch's output, of some sinks or of all. Redone on recovery: sinks take an epoch once.

    Unavailable where the environment is to blame: a later try may do. Other errors are those of the flow, or of its functions.
    """
    for name, files in manifest.staged.items():
        if some is not None and name not in some:
            continue
        sink = sinks.get(name)
        if sink is None:
            raise ConfigError(
                f"epoch {manifest.epoch} has output for the sink '{name}', which this flow does not have; start it with that sink once"
            )
        try:
            sink.publish(manifest.epoch, [_staged(store, StagedFile.from_json(file)) for file in files])
        except (OSError, Retryable) as error:
            raise Unavailable(
                f"epoch {manifest.epoch} is committed, and sink '{name}' ({sink.describe()}) does not take it: {error}. Nothing is lost: "
                "it is published when the sink takes it, at the latest by the next start"
            ) from error


def read_output(store: Store, outcome: Outcome) -> dict[str, pl.DataFrame]:
    """The rows that an uncommitted epoch would publish, per sink."""
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
