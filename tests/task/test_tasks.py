"""What a worker does around its tasks."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from meander.worker import Worker


def is_seen(thing: object) -> bool:
    """Whether the collector looks at it: it does not list what is frozen."""
    return any(one is thing for one in gc.get_objects())


@pytest.mark.many
def test_what_modules_hold_is_kept_from_the_collector_once_and_again_when_there_are_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    gc.unfreeze()
    try:
        worker.spare_imports()
        assert gc.get_freeze_count() > 10_000
        kept = [[1], [2]]
        worker.spare_imports()
        assert is_seen(kept)  # nothing was imported: what tasks make stays in the collector's sight
        monkeypatch.setitem(sys.modules, "a_new_one", ModuleType("a_new_one"))
        worker.spare_imports()
        assert not is_seen(kept)
    finally:
        gc.unfreeze()
