"""The S3 store beyond the contract: what each answer of a server means, and which requests are sent again.

Answers that a real server gives only on a bad day come from a script; the rest is asked of a real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.servers import BUCKET, KEYS

from meander.clock import FakeClock
from meander.errors import ConfigError, Retryable, Unavailable
from meander.on_spark.probe import probe_put_if_absent
from meander.state.stores.s3 import S3Store

Answer = tuple[int, str]


class Scripted(ThreadingHTTPServer):
    """Gives its answers in order, the last one for ever; status 0 closes the connection without one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, str | None]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append((self.command, self.headers.get("if-none-match")))
        status, code = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if status == 0:
            self.close_connection = True
            return
        body = f"<Error><Code>{code}</Code></Error>".encode() if status >= 400 else b"content"
        self.send_response(status)
        for name, value in (("content-length", str(len(body))), ("etag", '"1"'), ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server = Scripted()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def store(server: Scripted) -> S3Store:
    return S3Store(f"s3://bucket/prefix?endpoint=http://127.0.0.1:{server.server_port}&region=eu-central-1")


VERBS: dict[str, Callable[[S3Store], Any]] = {
    "get": lambda store: store.get("log/409"),
    "get_range": lambda store: store.get_range("log/409", 5, 5),
    "map": lambda store: store.map("log/409"),
    "put": lambda store: store.put("log/409", b"1"),
    "put_if_absent": lambda store: store.put_if_absent("log/409", b"1"),
    "list": lambda store: store.list("log/"),
    "delete": lambda store: store.delete("log/409"),
}


def test_an_existing_name_is_412_and_also_304(store: S3Store, server: Scripted) -> None:
    for status in (412, 304):
        server.answers = [(status, "PreconditionFailed")]
        assert store.put_if_absent("log/409", b"1") is False
    assert server.requests == [("PUT", "*")] * 2


@pytest.mark.parametrize("answer", [(409, "ConditionalRequestConflict"), (500, "InternalError"), (503, "SlowDown"), (0, "")], ids=str)
def test_a_put_if_absent_with_an_unclear_answer_is_sent_once_and_left_to_the_caller(
    store: S3Store, server: Scripted, answer: Answer
) -> None:
    server.answers = [answer]
    with pytest.raises(Retryable, match="log/409"):
        store.put_if_absent("log/409", b"1")
    assert server.requests == [("PUT", "*")]


@pytest.mark.parametrize("verb", ["get", "get_range", "map", "put"])
def test_what_may_be_repeated_is_repeated(store: S3Store, server: Scripted, verb: str) -> None:
    server.answers = [(503, "SlowDown"), (500, "InternalError"), (206 if verb == "get_range" else 200, "")]
    if verb == "get_range":
        server.answers[-1] = (416, "InvalidRange")
    VERBS[verb](store)
    assert len(server.requests) == 3


@pytest.mark.parametrize("verb", VERBS)
def test_a_server_that_stays_away_is_retryable(store: S3Store, server: Scripted, verb: str) -> None:
    server.answers = [(503, "SlowDown")]
    with pytest.raises(Retryable, match="503 Service Unavailable SlowDown"):
        VERBS[verb](store)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, "NoSuchBucket"), "there is no bucket 'bucket'"),
        ((501, "NotImplemented"), "cannot do what is needed"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_what_a_person_must_mend_is_said_by_every_verb(store: S3Store, server: Scripted, verb: str, answer: Answer, message: str) -> None:
    server.answers = [answer]
    with pytest.raises(ConfigError, match=message):
        VERBS[verb](store)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("answer", [(403, "AccessDenied"), (403, "ExpiredToken"), (401, "Unauthorized")])
def test_credentials_that_are_refused_may_be_renewed(store: S3Store, server: Scripted, verb: str, answer: Answer) -> None:
    server.answers = [answer]
    with pytest.raises(Unavailable, match=rf"was refused \({answer[0]} \w+ {answer[1]}\); check AWS_ACCESS_KEY_ID"):
        VERBS[verb](store)


def test_a_server_that_ignores_if_none_match_is_found_out_by_the_probe(store: S3Store, server: Scripted) -> None:
    server.answers = [(200, "")]
    with pytest.raises(ConfigError, match="does not honour put-if-absent: two puts of one name succeeded"):
        probe_put_if_absent(store, FakeClock())


def test_a_real_server_passes_the_probe(s3_bucket: str) -> None:
    store = S3Store(f"s3://{BUCKET}/probed?endpoint={s3_bucket}")
    name, nonce = probe_put_if_absent(store, FakeClock())
    assert store.get(name) == nonce


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_bucket_of_a_real_server_is_no_empty_store(s3_bucket: str, verb: str) -> None:
    with pytest.raises(ConfigError, match="there is no bucket 'elsewhere'"):
        VERBS[verb](S3Store(f"s3://elsewhere/x?endpoint={s3_bucket}"))


def test_a_real_server_refuses_a_wrong_secret(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Unavailable, match="check AWS_ACCESS_KEY_ID") as refused:
        S3Store(f"s3://{BUCKET}/x?endpoint={s3_bucket}").put_if_absent("log/1", b"")
    assert "wrong" not in str(refused.value)


def test_the_endpoint_may_come_from_the_environment(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    S3Store(f"s3://{BUCKET}/environment?endpoint={s3_bucket}").put("log/1", b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_bucket)
    assert S3Store(f"s3://{BUCKET}/environment").get("log/1") == b"1"


@pytest.mark.parametrize("url", ["s3:///prefix", "s3://key:secret@bucket/x"])
def test_a_url_names_a_bucket_and_no_credentials(url: str) -> None:
    with pytest.raises(ConfigError, match="write s3://bucket/prefix") as refused:
        S3Store(url)
    assert "secret" not in str(refused.value)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown option endpont; there are endpoint, region"):
        S3Store("s3://bucket/x?endpont=http://127.0.0.1")
