"""Changing a flow over HTTP: what reaches the run, who may send code, and what is answered."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.control.fake_run import FakeRun

from meander.clock import SystemClock
from meander.control.api import make_app
from meander.control.guard import Policy
from meander.errors import ConfigError, FlowError, Rejected

TOKEN, CODE = "correct-horse-battery", "staple-and-more-than-that"
REPLACE = {"change": "replace", "name": "people", "operator": {"filter": "age > 10"}}


def client_of(run: FakeRun, token: str | None = TOKEN, code_token: str | None = CODE) -> TestClient:
    app = make_app(run, Policy("127.0.0.1", token, code_token=code_token), SystemClock())
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def post(run: FakeRun, body: dict[str, Any], bearer: str | None = TOKEN, **server: Any) -> Any:
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    return client_of(run, **server).post("/modify", json=body, headers=headers)


def test_changes_reach_the_run_and_its_answer_comes_back() -> None:
    run = FakeRun()
    answer = post(run, {"changes": [REPLACE], "drop_state": ["counts"], "author": "ada", "request_id": "one", "timeout": 5})
    assert answer.status_code == 200
    assert (answer.json()["version"], answer.json()["epoch"], answer.json()["dry_run"]) == (2, 13, False)
    ((verb, told, code),) = run.asked
    assert (verb, code) == ("modify", None)
    assert told["changes"][0]["operator"] == {"filter": "age > 10"}
    assert (told["drop_state"], told["author"], told["request_id"], told["timeout"]) == (["counts"], "ada", "one", 5.0)


def test_a_dry_run_says_so() -> None:
    run = FakeRun()
    answer = post(run, {"changes": [REPLACE], "dry_run": True})
    assert (answer.json()["dry_run"], answer.json()["plan"]) == (True, ["filter 'people' differs"])
    assert run.asked[0][1]["dry_run"] is True


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (FlowError("there is no operator 'peple'"), 422, "FlowError"),
        (Rejected("the modification was rejected: ZeroDivisionError"), 412, "Rejected"),
        (ConfigError("request_id"), 400, "ConfigError"),
    ],
)
def test_what_the_run_refuses_is_a_problem(failure: Exception, status: int, kind: str) -> None:
    run = FakeRun()
    run.failure = failure
    answer = post(run, {"changes": [REPLACE]})
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert (answer.status_code, answer.json()["title"], answer.json()["detail"]) == (status, kind, str(failure))


def test_without_a_token_nothing_is_changed_and_no_history_shown() -> None:
    run = FakeRun()
    assert post(run, {"changes": [REPLACE]}, bearer=None).status_code == 401
    assert client_of(run).get("/modifications").status_code == 401
    assert run.asked == []
    answer = client_of(run).get("/modifications", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.json() == {"modifications": run.modifications()}


def test_code_needs_the_code_token_and_is_not_even_read_without() -> None:
    run = FakeRun()
    body = {"code": base64.b64encode(b"packed").decode()}
    for server in ({}, {"code_token": None}, {"token": None, "code_token": None}, {"token": None}):
        answer = post(run, body, **server)
        assert answer.status_code == 403, server
        assert "need the code token" in answer.json()["detail"]
    assert run.asked == []
    assert post(run, body, bearer=CODE).status_code == 200
    assert run.asked[0][2] == b"packed"
    assert post(run, {"changes": [REPLACE]}, bearer=CODE).status_code == 200


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "either changes or code"),
        ({"changes": [REPLACE], "code": "eA=="}, "either changes or code"),
        ({"changes": [{"change": "swap", "name": "x"}]}, "changes.0.change"),
        ({"changes": [{**REPLACE, "colour": "red"}]}, "changes.0.colour"),
        ({"changes": [REPLACE], "timeout": 0}, "timeout"),
        ({"changes": [REPLACE], "dry_run": "yes"}, "dry_run"),
        ({"code": "no base64!"}, "not base64"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused(body: dict[str, Any], why: str) -> None:
    run = FakeRun()
    answer = post(run, body, bearer=CODE)
    assert answer.status_code == 400
    assert why in answer.json()["detail"]
    assert run.asked == []


def test_a_flow_that_has_ended_is_not_changed() -> None:
    run = FakeRun()
    run.state = "failed"
    assert post(run, {"changes": [REPLACE]}).status_code == 409


def test_both_tokens_must_differ() -> None:
    with pytest.raises(ConfigError, match="the same"):
        Policy("127.0.0.1", TOKEN, code_token=TOKEN)
