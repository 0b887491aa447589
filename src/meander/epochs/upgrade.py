"""State that is rewritten for a new version of a plan: once, before the epoch that tries it, and as a whole.

Unlike everything else, its cost follows the operator's whole state: the user asked for that with
``upgrade`` or ``backfill``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import polars as pl

from meander.clock import Clock
from meander.epochs.setup import Rewritten
from meander.errors import FlowError
from meander.plan.change.layout import layout_of
from meander.plan.graph import Plan
from meander.state.hashing import Hashes
from meander.state.manifest import Manifest, Table
from meander.state.reading import map_segments, merge_rows
from meander.state.segment import ALL, HASH, SegmentRef, encode_segment, ends_of
from meander.state.stores.contract import Store
from meander.state.table import conform


def rewrite_tables(
    store: Store,
    clock: Clock,
    manifest: Manifest,
    before: Plan,
    after: Plan,
    upgrades: Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]],
    gone: tuple[str, ...],
) -> Rewritten:
    """The tables for the new plan. Segments written for it count only if its epoch is committed."""
    tables: dict[str, Table] = {}
    for name, table in manifest.tables.items():
        if name in upgrades:
            old, new = layout_of(before, name).schema(), layout_of(after, name).schema()
            rows = merge_rows(store, table, map_segments(store, table), manifest.key_groups, keep_hash=True)
            hashes: Hashes = rows.get_column(HASH).to_numpy()
            state = conform(rows, old)
            upgraded = upgrades[name](state)
            hidden = [key for key in table.keys if key == ALL]  # of an aggregate without a key, which knows nothing of it
            keys = {key: new[key] for key in table.keys if key not in hidden}  # a key can become wider with the upgrade
            if upgraded.height != rows.height or not conform(upgraded, keys).equals(conform(state, keys)):
                raise FlowError(f"upgrade of '{name}': it must return every row of the state it is given, with its key, in order")
            made = [pl.Series(HASH, hashes), *(rows.get_column(key) for key in hidden), *conform(upgraded, new)]
            data = encode_segment(pl.DataFrame(made), time=table.time)
            written = f"segments/{name}/{manifest.generation:08d}-{manifest.epoch:010d}-upgrade-{clock.new_id()}.arrow"
            store.put(written, data)
            groups = (1 << manifest.key_groups) - 1 if rows.height else 0  # one without rows is there for its columns
            ref = SegmentRef(written, rows.height, data.size, manifest.epoch, groups, ends_of(data))
            tables[name] = replace(table, segments=(ref,))
    return Rewritten((*gone, *tables), tables)
