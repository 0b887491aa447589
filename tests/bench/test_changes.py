"""The benchmark of changes: one small run of it."""

from __future__ import annotations

import json

import pytest

from meander.cli.main import main


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_run_of_it_ends_with_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("bench changes --keys 500 --epoch-events 2000 --epochs 2 --kinds alone,sum,max,top,join --json".split()) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["bench"] == "changes"
    assert set(found["systems"]["meander"]) == {"alone", "sum", "max", "top", "join"}
    assert set(found["ratios"]) == {"sum/alone", "max/alone", "top/alone", "join/alone"}
