"""After every epoch, whatever has happened before it, the last table of a chain is the query over the first one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.task.looking import Looked


@pytest.mark.many
@pytest.mark.parametrize("seed", range(12))
def test_a_chain_of_changes_is_its_query_after_every_epoch(tmp_path: Path, seed: int) -> None:
    looked = Looked(seed)
    try:
        assert looked.run(tmp_path) > 0
    except AssertionError as error:
        raise AssertionError(looked.words) from error
