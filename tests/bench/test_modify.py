"""The benchmark of changes, small: every change is seen in the output, and every migration is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meander.cli.main import main


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_small_run_of_it_ends_with_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--against", "", "--warmup", "2", "--seconds", "2", "--rate", "300", "--keys", "500", "--timeout", "250"]
    words += ["--small-operators", "3", "--large-operators", "2", "--state", "4MB", "--cluster", "local-cluster[2,1,1024]"]
    assert main(["bench", "modify", *words, "--folder", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    ours = found["results"]["meander"]
    assert [(ours[scenario]["lost"], ours[scenario]["doubled"]) for scenario in ("changes", "small", "large")] == [(0, 0)] * 3
    assert [*ours["changes"]["by_change"]] == ["replace", "filter", "insert", "remove", "restart"]
    for scenario, operators in (("small", 3), ("large", 2)):
        moves = ours[scenario]["by_change"]
        assert [*moves] == ["migrate", "back", "restart"]
        assert all(moves[name]["moved"] >= operators for name in ("migrate", "back"))
        assert all(numbers["gap_seconds"]["during"] > 0 for numbers in moves.values()), "all of it was seen"
