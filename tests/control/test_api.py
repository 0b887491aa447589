"""The HTTP API against a fake run: what each request asks of it, and what it answers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.control.fake_run import FakeRun

from meander import errors
from meander.clock import FakeClock
from meander.control.api import make_app
from meander.control.guard import policy
from meander.control.problems import STATUS


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
def http(run: FakeRun) -> TestClient:
    return TestClient(make_app(run, policy("127.0.0.1", None), FakeClock(start=1000.0)), base_url="http://127.0.0.1:9008")


def problem(response: Any, status: int) -> str:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["type"].startswith("urn:meander:problem:")
    return str(body["detail"])


def test_the_status_is_the_runs(http: TestClient, run: FakeRun) -> None:
    assert http.get("/status").json() == run.status()


def test_scaling_a_stage_without_a_number_adds_one_slot(http: TestClient, run: FakeRun) -> None:
    answer = http.get("/scale", params={"stage": 2}).json()
    assert run.asked == [("rescale", "counts", 3, "hybrid")]
    assert (answer["stage"], answer["slots"], answer["rescaled"][0]["before"]) == (2, 3, 2)


def test_scaling_a_stage_to_a_number_takes_it(http: TestClient, run: FakeRun) -> None:
    http.get("/scale", params={"stage": 2, "to": 8, "strategy": "lazy"})
    assert run.asked == [("rescale", "counts", 8, "lazy")]


def test_a_stage_without_state_is_refused_with_those_that_have_some(http: TestClient, run: FakeRun) -> None:
    detail = problem(http.get("/scale?stage=1"), 409)
    assert detail == "stage 1 (lines, people) keeps no state, its tasks follow the input; stages that keep state: 2 (counts)"
    assert problem(http.get("/scale?stage=3"), 404) == "there is no stage 3; stages that keep state: 2 (counts)"
    assert not run.asked


def test_rescaling_an_operator_answers_with_what_is_in_force(http: TestClient, run: FakeRun) -> None:
    answer = http.post("/rescale", json={"operator": "counts", "parallelism": 4, "strategy": "eager"})
    assert answer.json() == {
        "operator": "counts",
        "before": 2,
        "after": 4,
        "moved": 42,
        "strategy": "eager",
        "epoch": 13,
        "fetched": 0,
        "failures": [],
        "fetched_from_store": 0,
    }
    assert run.asked == [("rescale", "counts", 4, "eager")]


def test_an_operator_that_is_not_there_is_not_found(http: TestClient) -> None:
    detail = problem(http.post("/rescale", json={"operator": "count", "parallelism": 4}), 404)
    assert detail == "there is no stateful operator 'count' to rescale; there are: counts"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"operator": "counts"},
        {"operator": "counts", "parallelism": "4"},
        {"operator": "counts", "parallelism": 4, "stratgy": "lazy"},
        [1],
    ],
)
def test_a_body_that_is_not_understood_is_refused_with_where_to_look(http: TestClient, run: FakeRun, body: object) -> None:
    assert "GET /docs says what a request looks like" in problem(http.post("/rescale", json=body), 400)
    assert not run.asked


def test_an_executor_is_evacuated(http: TestClient, run: FakeRun) -> None:
    assert http.post("/evacuate", json={"executor": "0"}).json() == {"executor": "0", "slots": 0}
    assert run.asked == [("evacuate", "0")]


def test_an_unknown_executor_and_the_last_one_stay(http: TestClient, run: FakeRun) -> None:
    assert problem(http.post("/evacuate", json={"executor": "7"}), 404) == "there is no executor '7'; there are: 0, 1"
    http.post("/evacuate", json={"executor": "0"})
    assert "is the last one: add another before it goes" in problem(http.post("/evacuate", json={"executor": "1"}), 409)
    assert run.asked == [("evacuate", "0")]


def test_stop_answers_before_it_stops(http: TestClient, run: FakeRun) -> None:
    assert http.post("/stop").status_code == 202
    deadline = time.monotonic() + 5
    while not run.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    assert run.asked == [("stop",)]


def test_a_flow_that_has_ended_cannot_be_changed(http: TestClient, run: FakeRun) -> None:
    run.state = "failed"
    assert problem(http.get("/scale?stage=2"), 409) == "flow 'edits' has failed: row 7; start it again, then change it"
    assert http.get("/status").status_code == 200


def every_error(base: type[errors.MeanderError] = errors.MeanderError) -> list[type[errors.MeanderError]]:
    here = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, base) and kind is not base]
    return sorted(here, key=lambda kind: kind.__name__)


def test_every_kind_of_error_has_one_status_of_its_own() -> None:
    assert set(STATUS) == set(every_error())
    assert len(set(STATUS.values())) == len(STATUS)


@pytest.mark.parametrize("kind", every_error())
def test_an_error_of_the_run_is_a_problem_with_its_message(http: TestClient, run: FakeRun, kind: type[errors.MeanderError]) -> None:
    run.failure = kind("the store did not answer; try again")
    response = http.post("/rescale", json={"operator": "counts", "parallelism": 4})
    assert problem(response, STATUS[kind]) == "the store did not answer; try again"
    assert ("retry-after" in response.headers) == (kind in (errors.Retryable, errors.Unavailable))


def test_an_error_that_is_nobodys_on_purpose_is_a_problem_too(run: FakeRun) -> None:
    run.failure = ZeroDivisionError("division by zero")
    app = make_app(run, policy("127.0.0.1", None), FakeClock())
    http = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    assert "ZeroDivisionError" in problem(http.get("/scale?stage=2"), 500)


def test_what_is_not_there_is_a_problem_that_says_where_to_look(http: TestClient) -> None:
    assert "GET /docs lists what there is" in problem(http.get("/nothing"), 404)
    assert "GET /docs lists what there is" in problem(http.get("/rescale"), 405)


def test_the_api_describes_itself_to_programs_and_to_people(http: TestClient) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/status", "/metrics", "/scale", "/rescale", "/migrate", "/modify", "/modifications", "/evacuate", "/stop"}
    page = http.get("/docs").text
    assert all(path in page for path in paths)
    assert "<script" not in page


def test_operators_are_migrated_to_an_executor(http: TestClient, run: FakeRun) -> None:
    answer = http.post("/migrate", json={"operators": ["counts"], "executor": "1", "key_groups": [0, 1]}).json()
    assert (answer["operators"], answer["executor"], answer["moved"], answer["epoch"]) == (["counts"], "1", 21, 14)
    assert run.asked == [("migrate", ["counts"], "1", [0, 1], "hybrid")]
    detail = problem(http.post("/migrate", json={"operators": ["count"], "executor": "1"}), 404)
    assert detail == "there is no stateful operator 'count' to migrate; there are: counts"
