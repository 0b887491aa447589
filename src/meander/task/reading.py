"""How a flow's state is shown to people: what is stored of a plan's readers, and the state of an operator as a table.

Readers are stored as data, by kind and parameters, so that state is read without running anything that is in the store. Only an aggregate
of a user's own has code that has to run to finish its values: the caller says whether it may.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from meander.errors import ConfigError, Corrupted, Retryable
from meander.plan.schemas import did_you_mean
from meander.state.log import no_such_epoch, read_manifest
from meander.state.manifest import Manifest, Table, operator_of
from meander.state.reading import map_segments, merge_rows, missing_segment, plan_name
from meander.state.stores.contract import Store
from meander.state.stores.opening import checked_store
from meander.stored.documents import read_document, write_document
from meander.stored.values import Reader as Values
from meander.stored.values import Writer

if TYPE_CHECKING:
    from meander.task.operators.contract import Reader

_ATTEMPTS = 5
_GIVE = "give what was given to flow.start(...)"
_REFUSAL = (
    "which has to run to show this state. Where you trust the store, allow it: md.read_state(..., run_code=True), or "
    "`meander state ... --run-code`"
)


def read_state(store: str | Path, operator: str, epoch: int | None = None, run_code: bool = False) -> pa.Table:
    """An operator's state as a table: its key columns and its finished values, at the newest epoch or a retained one.

    Nothing that is stored is run for it, unless an aggregate of the flow's own has to be finished: that is refused, and with
    ``run_code=True`` the aggregate's code is taken from the store and run. Give that only for a store that you trust.

    Example: ``md.read_state("state/", "totals").to_pandas()``.
    """
    return read_operator(checked_store(store), operator, epoch, run_code)


def read_operator(store: Store, operator: str, epoch: int | None = None, run_code: bool = False) -> pa.Table:
    """``read_state`` on a store that is open already.

    A running flow may collect a segment between the manifest and the segment. Then the log has moved on, and the read starts again.
    """
    if epoch is not None and epoch < 1:
        raise ConfigError(f"store {store.url}: there is no epoch {epoch}: they are counted from 1; leave epoch out for the newest")
    missing, last = "", -1
    for _ in range(_ATTEMPTS):
        manifest = read_manifest(store, epoch)
        tables = _tables(store, manifest, operator)
        mapped = {name: map_segments(store, table) for name, table in tables.items()}
        gone = next((name for segments in mapped.values() for name, data in segments.items() if data is None), None)
        if gone is None:
            rows = {name: merge_rows(store, table, mapped[name], manifest.key_groups) for name, table in tables.items()}
            return _finish(store, manifest, operator, rows, run_code).to_arrow(compat_level=pl.CompatLevel.oldest())
        if manifest.position == last:  # the same manifest once more: it was not overtaken
            missing = gone
            break
        last = manifest.position
    if epoch is not None and epoch != read_manifest(store).epoch:
        raise no_such_epoch(store, epoch)
    if missing:
        raise missing_segment(store, missing)
    raise Retryable(f"store {store.url}: the flow moves on faster than its state can be read; try again, or retain more epochs")


def write_readers(flow: str, readers: Mapping[str, Reader]) -> bytes:
    """The document that says how the state of each operator is shown."""
    writer = Writer(expressions=False)  # values are folded by them, and shown without
    return write_document({"flow": flow, "readers": {name: writer.write(reader) for name, reader in readers.items()}})


def _tables(store: Store, manifest: Manifest, operator: str) -> dict[str, Table]:
    """The operator's own table and those of its aggregates' values."""
    found = {name: table for name, table in manifest.tables.items() if operator_of(name) == operator}
    if found and operator_of(operator) == operator:
        return found
    if manifest.position < 0:
        raise ConfigError(f"store {store.url}: there is no flow in it; {_GIVE}")
    if manifest.epoch == 0 or operator in manifest.routing:
        raise ConfigError(f"store {store.url}: operator '{operator}' has no state yet at epoch {manifest.epoch}")
    known = sorted({operator_of(name) for name in manifest.tables})
    there = f"there are: {', '.join(known) or 'none'}{did_you_mean(operator, known)}"
    raise ConfigError(f"store {store.url}: there is no stateful operator '{operator}'; {there}")


def _finish(store: Store, manifest: Manifest, operator: str, tables: Mapping[str, pl.DataFrame], run_code: bool) -> pl.DataFrame:
    """What is stored as people want to see it, by the reader that the plan recorded."""
    from meander.task import operators  # noqa: F401  # has the kinds of readers, which not everyone who imports meander needs

    name = plan_name(manifest.plan["digest"])
    if (data := store.get(name)) is None:
        raise Corrupted(f"store {store.url}: the plan {manifest.plan['digest']} is missing")
    what = f"store {store.url}: '{name}'"
    readers = read_document(data, what)["readers"]
    if operator not in readers:
        raise Corrupted(f"{what} does not say how the state of '{operator}' is shown")
    reader = Values(f"store {store.url}: operator '{operator}'", run_code, _REFUSAL).read(readers[operator])
    if hasattr(reader, "as_of"):  # what is open depends on how far event time has come
        reader = reader.as_of(manifest)
    shown: pl.DataFrame = reader.show(tables)
    return shown
