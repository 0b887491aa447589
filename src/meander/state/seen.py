"""The names a source has taken (files), kept beside the manifest so that neither it nor an epoch grows with their number.

Names are appended to the log with their epoch; each snapshot moves what came since the last one into a file of its own, and a few small
files into one. A file that is large enough is never written again, so that what a snapshot costs does not grow with the names there are.
"""

from __future__ import annotations

from meander.clock import Clock
from meander.errors import Corrupted
from meander.state.formats import NAMES
from meander.state.manifest import Manifest
from meander.state.stores.contract import Store

_FILES_BEFORE_MERGE = 8
_LARGE_ENOUGH = 20_000


def load_seen(store: Store, manifest: Manifest, source: str) -> set[str]:
    """Every name the source has taken up to this manifest."""
    names = set(manifest.recent.get(source, []))
    for file in manifest.seen.get(source, []):
        names.update(_read(store, file))
    return names


def flush_seen(store: Store, clock: Clock, manifest: Manifest) -> dict[str, list[str]]:
    """Put the recent names into files: the files that hold all names then."""
    seen = {name: list(files) for name, files in manifest.seen.items()}
    for source, names in manifest.recent.items():
        if not names:
            continue
        files = seen.setdefault(source, [])
        merged = list(names)
        small = [file for file in files if _count(file) < _LARGE_ENOUGH]
        if len(small) >= _FILES_BEFORE_MERGE:
            merged = [name for file in small for name in _read(store, file)] + merged
            files[:] = [file for file in files if file not in small]
        target = f"seen/{source}/{manifest.generation:08d}-{manifest.position:012d}-{len(merged)}-{clock.new_id()}"
        store.put(target, NAMES.write({"names": merged}))
        files.append(target)
    return seen


def _count(file: str) -> int:
    """How many names are in a file: its name says so."""
    return int(file.rsplit("-", 2)[1])


def _read(store: Store, file: str) -> list[str]:
    data = store.get(file)
    if data is None:
        raise Corrupted(f"the names in '{file}' are named by the log but are not in store {store.url}")
    names: list[str] = NAMES.read(data, file)["names"]
    return names
