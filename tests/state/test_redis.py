"""The Redis store beyond the contract: which servers it refuses, what a dead client or server leaves, and which error is whose."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from tests import servers

from meander.errors import ConfigError, Retryable, Unavailable
from meander.state.stores import redis as redis_store
from meander.state.stores.redis import RedisStore


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with servers.redis(tmp_path_factory.mktemp("redis")) as (_, port):
        yield port


@pytest.fixture
def client(port: int) -> Iterator[Redis]:
    with Redis(port=port) as client:
        client.flushall()
        yield client


@pytest.mark.parametrize(
    ("setting", "bad", "good"),
    [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)
def test_a_server_that_may_forget_is_refused_with_the_command_that_mends_it(
    port: int, client: Redis, setting: str, bad: str, good: str
) -> None:
    client.config_set(setting, bad)
    try:
        with pytest.raises(ConfigError, match=f"{setting} is {bad}.*CONFIG SET {setting} {good};"):
            RedisStore(f"redis://127.0.0.1:{port}/0/flow")
    finally:
        client.config_set(setting, good)
    RedisStore(f"redis://127.0.0.1:{port}/0/flow")


def test_stores_in_one_database_do_not_see_each_other(port: int, client: Redis) -> None:
    one, two = (RedisStore(f"redis://127.0.0.1:{port}/0/{name}") for name in ("flows/one", "flows/two"))
    other = RedisStore(f"redis://127.0.0.1:{port}/1/flows/one")
    one.put("log/1", b"1")
    assert (one.list(""), two.list(""), other.list(""), two.get("log/1"), other.get("log/1")) == (["log/1"], [], [], None, None)


def test_listing_a_folder_looks_at_nothing_else(port: int, client: Redis) -> None:
    store = RedisStore(f"redis://127.0.0.1:{port}/0/flow")
    for number in range(20):
        store.put(f"segments/{number}", b"")
        client.set(f"somebody/elses/{number}", b"")
    client.config_resetstat()
    assert len(store.list("segments/")) == 20
    used = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}  # type: ignore[union-attr]
    assert used - {"config|resetstat", "info"} == {"zrangebylex"}


def test_a_client_that_dies_before_the_end_of_its_transaction_has_done_nothing(port: int, client: Redis) -> None:
    store = RedisStore(f"redis://127.0.0.1:{port}/0/flow")
    with socket.create_connection(("127.0.0.1", port)) as dying:
        dying.sendall(b"MULTI\r\nSET flow/log/1 half NX\r\nZADD flow/ 0 log/1\r\n")
        assert dying.recv(100).startswith(b"+OK")
    assert (store.get("log/1"), store.list("log/")) == (None, [])
    assert store.put_if_absent("log/1", b"whole")


def test_what_was_acknowledged_is_there_after_the_server_was_killed(tmp_path: Path) -> None:
    with servers.redis(tmp_path) as (process, port):
        store = RedisStore(f"redis://127.0.0.1:{port}/0/flow")
        for number in range(50):
            assert store.put_if_absent(f"log/{number}", b"x" * 1000)
            store.delete(f"log/{number - 10}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        for act in (lambda: store.get("log/49"), lambda: store.put_if_absent("log/50", b""), lambda: store.list("log/")):
            with pytest.raises(Retryable, match="no answer from Redis"):
                act()
    with servers.redis(tmp_path, port=port):
        assert sorted(store.list("log/")) == [f"log/{number}" for number in range(40, 50)]
        assert all(store.get(f"log/{number}") == b"x" * 1000 for number in range(40, 50))
        assert not store.put_if_absent("log/49", b"again")


def test_a_put_without_an_answer_is_unknown_until_it_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "_TIMEOUT", 0.5)
    with servers.redis(tmp_path) as (process, port):
        store = RedisStore(f"redis://127.0.0.1:{port}/0/flow")
        assert store.put_if_absent("log/1", b"mine")
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(Retryable):
                store.put_if_absent("log/2", b"mine")
        finally:
            process.send_signal(signal.SIGCONT)
        assert store.get("log/2") in (b"mine", None)
        assert store.list("log/") == (["log/1"] if store.get("log/2") is None else ["log/1", "log/2"])


def test_a_full_server_refuses_and_loses_nothing(tmp_path: Path) -> None:
    with servers.redis(tmp_path, "--maxmemory", "8mb") as (_, port):
        store = RedisStore(f"redis://127.0.0.1:{port}/0/flow")
        with pytest.raises(Unavailable, match="does not fit any more; raise this Redis' maxmemory"):
            all(store.put_if_absent(f"log/{number}", b"x" * (1 << 20)) for number in range(100))
        names = store.list("log/")
        assert names
        assert all(store.get(name) == b"x" * (1 << 20) for name in names)


def test_a_password_comes_from_the_environment_and_never_from_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDISCLI_AUTH", "word")
    with servers.redis(tmp_path, "--requirepass", "word") as (_, port):
        store = RedisStore(f"redis://127.0.0.1:{port}/0/flow")
        assert store.put_if_absent("log/1", b"1")
        monkeypatch.setenv("REDISCLI_AUTH", "wrong")
        with pytest.raises(ConfigError, match=r"refused the login.*set REDISCLI_AUTH"):
            RedisStore(f"redis://127.0.0.1:{port}/0/flow")
        monkeypatch.delenv("REDISCLI_AUTH")
        with pytest.raises(ConfigError, match="REDISCLI_AUTH"):
            RedisStore(f"redis://127.0.0.1:{port}/0/flow")
    with pytest.raises(ConfigError, match="no password in the URL") as refused:
        RedisStore(f"redis://me:word@127.0.0.1:{port}/0/flow")
    assert "word@" not in str(refused.value)


def test_a_replica_is_refused(tmp_path: Path, port: int) -> None:
    with servers.redis(tmp_path, "--replicaof", "127.0.0.1", str(port)) as (_, replica):
        store = RedisStore(f"redis://127.0.0.1:{replica}/0/flow")
        with pytest.raises(ConfigError, match="is a replica"):
            store.put("log/1", b"")


@pytest.mark.parametrize("url", ["redis://host:1/orders", "redis://host:1/0", "redis:///0/orders", "redis://host:1/0/orders?x=1"])
def test_a_url_names_host_database_and_prefix(url: str) -> None:
    with pytest.raises(ConfigError, match="write redis://host:port/db/prefix"):
        RedisStore(url)
