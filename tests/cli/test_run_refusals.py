"""What ``meander run`` refuses before Spark is waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.small_store import make_store

from meander.cli.main import main
from meander.on_spark import session
from meander.state.stores.contract import Lock

FLOW = """
import meander as md
flow = md.Flow("f")
flow.source("edits", md.generator("wikipedia", rate=10)).sink("out", md.discard())
"""


@pytest.fixture
def flow_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a Spark was started")

    monkeypatch.setattr(session, "spark", started)
    (tmp_path / "flow.py").write_text(FLOW)
    return str(tmp_path / "flow.py")


def test_a_store_in_use_is_refused_at_once_in_the_shells_words(flow_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = Lock(make_store(tmp_path / "state", {"ada": (1, 1.0)}), "00000001")
    assert main(["run", flow_file, "--store", str(tmp_path / "state")]) == 2
    lock.release()
    error = capsys.readouterr().err
    assert "is in use by a live run" in error
    assert "--takeover" in error


@pytest.mark.parametrize("words", [["run", "FLOW", "--store"], ["status"], ["state"]])
def test_a_store_that_is_a_file_is_refused_in_words(
    words: list[str], flow_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("mine")
    assert main([flow_file if word == "FLOW" else word for word in words] + [str(tmp_path / "state")]) == 2
    assert "this is a file; a store is a folder" in capsys.readouterr().err
