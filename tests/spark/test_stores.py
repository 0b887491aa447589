"""Whole flows on the stores that are no folders, on real servers: killed, refused beside a live one, taken over, and right in the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.drivers import write_input
from tests.oracle import check_totals
from tests.servers import BUCKET

import meander as md
from meander.cli.store_view import owner_of
from meander.state.log import newest_generation
from meander.state.stores.contract import open_store
from meander.state.stores.lease import SECONDS

Start = Callable[..., Any]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


MOSTLY_S3 = pytest.mark.parametrize("url", [pytest.param("redis", marks=pytest.mark.long), "s3"], indirect=True)
MOSTLY_REDIS = pytest.mark.parametrize("url", ["redis", pytest.param("s3", marks=pytest.mark.long)], indirect=True)
"""Each test with one of them every time, and with the other one too where there is time."""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_url')}/flows/{tmp_path.name}"
    return f"s3://{BUCKET}/flows/{tmp_path.name}?endpoint={request.getfixturevalue('s3_bucket')}"


def check(url: str, folder: Path, tmp_path: Path) -> None:
    check_totals(url, folder, tmp_path / "out", pl.DataFrame(pl.from_arrow(md.read_state(url, "totals"))))


def request_for(url: str, tmp_path: Path, **options: Any) -> dict[str, Any]:
    return {"store": url, "in": str(tmp_path / "in"), "out": str(tmp_path / "out"), "dead_letters": str(tmp_path / "dead"), **options}


@MOSTLY_S3
def test_a_flow_killed_around_its_commits_ends_with_the_output_and_state_of_the_oracle(url: str, tmp_path: Path, child: Start) -> None:
    folder = write_input(tmp_path / "in", files=8, rows=3000, keys=700)
    request = request_for(url, tmp_path)
    for step in (["put_if_absent", 3, "before"], ["put_if_absent", 4, "after"], ["publish", 3, "before"]):
        code, _ = child(**request, crash=step).finish()
        assert code == -signal.SIGKILL, f"the driver was to die at {step}"
    code, answer = child(**request).finish()
    assert code == 0, answer
    check(url, folder, tmp_path)


@pytest.mark.alone
@MOSTLY_REDIS
def test_a_second_start_beside_a_live_run_is_refused_and_after_its_death_only_waits_for_the_lease(
    url: str, tmp_path: Path, child: Start
) -> None:
    folder = write_input(tmp_path / "in", files=4, rows=1000, keys=100)
    first = child(**request_for(url, tmp_path, trigger=0.2))
    first.wait_started()
    while len(list((tmp_path / "out").glob("*.parquet"))) < 8:  # 4 epochs, 2 slots
        assert first.process.poll() is None
        time.sleep(0.1)
    store = open_store(url)
    code, answer = child(**request_for(url, tmp_path)).finish()
    assert (code, answer["error"]) == (3, "Busy")
    assert f"process {first.process.pid} on " in answer["message"]
    assert "nothing was touched" in answer["message"]
    assert newest_generation(store) == 1, "the live one goes on meanwhile, but nobody else has written"
    assert (store.list("lease/"), store.list("probe/")) == (["lease/00000001"], [])
    assert owner_of(store).name.startswith(f"process {first.process.pid} on ")
    first.kill()
    began = time.monotonic()
    assert not owner_of(store).live
    assert time.monotonic() - began < SECONDS + 2
    code, answer = child(**request_for(url, tmp_path)).finish()
    assert code == 0, answer
    began = time.monotonic()
    assert not owner_of(store).live, "it was released"
    assert time.monotonic() - began < 1
    check(url, folder, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("url", ["redis", "s3"], indirect=True)
def test_a_replaced_driver_is_fenced_whatever_its_lease_says(url: str, tmp_path: Path, child: Start) -> None:
    folder = write_input(tmp_path / "in", files=30, rows=1000, keys=300)
    zombie = child(**request_for(url, tmp_path, trigger=0.1))
    zombie.wait_started()
    time.sleep(3)
    code, answer = child(**request_for(url, tmp_path, takeover=True)).finish()  # beside a live one, on purpose
    assert code == 0, answer
    write_input(tmp_path / "in", files=32, rows=1000, keys=300)
    code, answer = zombie.finish()
    assert (code, answer["error"]) == (3, "Fenced")
    code, answer = child(**request_for(url, tmp_path)).finish()
    assert code == 0, answer
    check(url, folder, tmp_path)


@pytest.mark.parametrize("url", ["redis", "s3"], indirect=True)
def test_without_a_folder_for_dead_letters_nothing_is_begun(url: str, tmp_path: Path, child: Start) -> None:
    write_input(tmp_path / "in", files=1, rows=10, keys=3)
    code, answer = child(**{**request_for(url, tmp_path), "dead_letters": None}).finish()
    assert (code, answer["error"]) == (3, "ConfigError")
    assert "dead_letters='folder/'" in answer["message"]
    assert open_store(url).list("") == []
