"""Who may ask what: tokens, foreign hosts, and pages of other sites."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from tests.control.fake_run import FakeRun

from meander.clock import FakeClock
from meander.control.api import make_app
from meander.control.guard import policy
from meander.errors import ConfigError

TOKEN = "correct-horse-battery"
CHANGES = [("GET", "/scale?stage=2"), ("POST", "/rescale"), ("POST", "/migrate"), ("POST", "/evacuate"), ("POST", "/stop")]


def served(run: FakeRun, host: str = "127.0.0.1", token: str | None = None, at: str = "http://127.0.0.1:9008") -> TestClient:
    return TestClient(make_app(run, policy(host, token), FakeClock()), base_url=at)


def send(http: TestClient, method: str, path: str, **headers: str) -> int:
    bodies = {
        "/rescale": {"operator": "counts", "parallelism": 3},
        "/evacuate": {"executor": "0"},
        "/migrate": {"operators": ["counts"], "executor": "0"},
    }
    return http.request(method, path, json=bodies.get(path), headers=headers).status_code


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "flows.example.org"])
def test_elsewhere_than_on_loopback_it_does_not_start_without_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="give a token"):
        policy(host, None)
    with pytest.raises(ConfigError, match="give a token"):
        policy(host, "")
    policy(host, TOKEN)


def test_a_token_that_can_be_guessed_is_refused_and_none_is_shown() -> None:
    with pytest.raises(ConfigError, match="at least 8"):
        policy("127.0.0.1", "secret")
    assert TOKEN not in repr(policy("127.0.0.1", TOKEN))


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_changes_need_the_token_where_there_is_one(method: str, path: str, host: str) -> None:
    run = FakeRun()
    http = served(run, host, TOKEN)
    assert send(http, method, path) == 401
    assert send(http, method, path, Authorization=f"Bearer {TOKEN}x") == 401
    assert send(http, method, path, Authorization=f"Basic {TOKEN}") == 401
    assert not run.asked
    assert send(http, method, path, Authorization=f"Bearer {TOKEN}") in (200, 202)


@pytest.mark.parametrize("path", ["/scale?stage=2", "/%73cale?stage=2", "/scale/?stage=2"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT"])
def test_no_spelling_of_a_change_passes_without_the_token(method: str, path: str) -> None:
    run = FakeRun()
    assert send(served(run, "127.0.0.1", TOKEN), method, path) == 401
    assert not run.asked


def test_looking_needs_no_token() -> None:
    http = served(FakeRun(), "0.0.0.0", TOKEN)
    assert http.get("/status").status_code == http.get("/metrics").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example.org", "evil.example.org:9008", "localhost.evil.org", "127.0.0.1.evil.org", "10.0.0.1", "", "[bad"]
)
def test_a_name_that_only_resolves_to_loopback_is_refused(host: str) -> None:
    http = served(FakeRun())
    for method, path in [*CHANGES, ("GET", "/status"), ("GET", "/metrics")]:
        assert send(http, method, path, Host=host) == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9008", "localhost:1234", "LOCALHOST", "[::1]:9008"])
def test_loopback_may_be_named_as_one_likes(host: str) -> None:
    assert send(served(FakeRun()), "GET", "/status", Host=host) == 200


def test_where_others_may_come_its_own_host_and_any_number_will_do_but_no_foreign_name() -> None:
    http = served(FakeRun(), "flows.example.org", TOKEN)
    assert [send(http, "GET", "/status", Host=host) for host in ("flows.example.org:9008", "192.168.1.5", "evil.example.org")] == [
        200,
        200,
        421,
    ]


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8000"},
        {"Referer": "https://evil.example.org/page"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_page_of_another_site_changes_nothing(method: str, path: str, headers: dict[str, str]) -> None:
    run = FakeRun()
    assert send(served(run), method, path, **headers) == 403
    assert not run.asked


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_page_of_its_own_and_a_typed_address_may(method: str, path: str) -> None:
    own = {"Origin": "http://127.0.0.1:9008", "Sec-Fetch-Site": "same-origin"}
    assert send(served(FakeRun()), method, path, **own) in (200, 202)
    assert send(served(FakeRun()), method, path, **{"Sec-Fetch-Site": "none"}) in (200, 202)


def test_a_form_cannot_be_sent() -> None:
    run = FakeRun()
    http = served(run)
    for media_type in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        body = '{"operator": "counts", "parallelism": 3}'
        assert http.post("/rescale", content=body, headers={"Content-Type": media_type}).status_code == 415
    assert not run.asked
