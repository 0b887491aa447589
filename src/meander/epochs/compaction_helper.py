"""The compaction helper's main: does the merges that it is sent until its pipe closes."""

from __future__ import annotations

import os
import sys
from typing import Any

from meander.epochs.compaction import _read, _write
from meander.errors import Corrupted, MeanderError
from meander.state.compaction import Merge, run_merge
from meander.state.segment import Segment, SegmentRef, ends_of
from meander.state.stores.contract import Store, open_store


def main() -> None:
    os.nice(10)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    stores: dict[str, Store] = {}
    while (request := _read(sys.stdin.buffer)) is not None:
        url, key_groups, merge, name = request
        try:
            if url not in stores:  # opening may talk to a server
                stores[url] = open_store(url)
            answer: tuple[Any] = (_merge(stores[url], merge, name, key_groups),)
        except MeanderError as error:  # the merge is chosen again later; epochs do not depend on it
            sys.stderr.write(f"meander: compaction of '{merge.table}' failed: {error}\n")
            answer = (None,)
        try:
            _write(answers, answer)
        except BrokenPipeError:  # the driver is gone
            return


def _merge(store: Store, merge: Merge, name: str, key_groups: int) -> tuple[str, int, int, tuple[int, ...]]:
    def open_segment(ref: SegmentRef) -> Segment:
        data = store.map(ref.name)
        if data is None:
            raise Corrupted(f"segment '{ref.name}' is not in store {store.url}")
        return Segment(ref.name, data)

    data, rows = run_merge(merge, open_segment, key_groups)
    if rows:
        store.put(name, data)
    return name, rows, data.size, ends_of(data)


if __name__ == "__main__":
    main()
