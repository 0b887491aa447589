"""Stores: one winner per name, what is written is there, and a lock that dies with its owner."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from meander.errors import Busy, ConfigError, Retryable
from meander.state.store import DirStore, Lock, MemoryStore, Store, open_store, sweep_temporary

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DirStore(tmp_path / "deep" / "store")


def test_what_is_put_is_there_until_it_is_deleted(store: Store) -> None:
    store.put("a/b/one", b"1")
    assert (store.get("a/b/one"), bytes(memoryview(store.map("a/b/one")))) == (b"1", b"1")
    assert store.list("a/") == ["a/b/one"]
    store.delete("a/b/one")
    store.delete("a/b/one")
    assert (store.get("a/b/one"), store.map("a/b/one"), store.list("a/"), store.list("z/")) == (None, None, [], [])


def test_put_if_absent_never_overwrites(store: Store) -> None:
    assert store.put_if_absent("log/1", b"first")
    assert not store.put_if_absent("log/1", b"second")
    assert store.get("log/1") == b"first"
    assert store.list("log/") == ["log/1"]


def test_of_8_threads_exactly_one_wins_each_name(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(30):
            won = list(pool.map(lambda who, n=number: store.put_if_absent(f"log/{n}", f"writer {who}".encode()), range(8)))
            assert won.count(True) == 1
            assert store.get(f"log/{number}") == f"writer {won.index(True)}".encode()


def test_of_8_processes_exactly_one_wins_each_name(tmp_path: Path) -> None:
    code = (
        "import sys; from meander.state.store import DirStore; s = DirStore(sys.argv[1]); sys.stdin.readline(); "
        "print(*[n for n in range(25) if s.put_if_absent(f'log/{n}', sys.argv[2].encode())])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    writers = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) for n in range(8)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    won = {who: [int(n) for n in writer.communicate(timeout=60)[0].split()] for who, writer in enumerate(writers)}
    assert sorted(n for names in won.values() for n in names) == list(range(25))
    store = DirStore(tmp_path)
    assert all(store.get(f"log/{n}") == str(who).encode() for who, names in won.items() for n in names)
    assert len(list((tmp_path / "log").iterdir())) == 25, "no temporary files are left"


def test_a_torn_write_of_a_dead_process_is_not_listed(tmp_path: Path) -> None:
    store = DirStore(tmp_path)
    store.put_if_absent("log/1", b"1")
    (tmp_path / "log" / ".2.abc").write_bytes(b"ha")
    assert store.list("log/") == ["log/1"]


def test_a_sweep_removes_what_is_left_of_a_put_and_nothing_else(tmp_path: Path) -> None:
    store = DirStore(tmp_path)
    store.put_if_absent("log/1/2", b"2")
    left, foreign = tmp_path / "log" / "1" / ".3.0123456789abcdef", tmp_path / "log" / ".metadata.crc"
    left.write_bytes(b"ha")
    foreign.write_bytes(b"crc")
    sweep_temporary(store, "log/")
    sweep_temporary(store, "nothing/")
    sweep_temporary(MemoryStore(), "log/")
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [foreign, tmp_path / "log" / "1" / "2"]


@pytest.mark.parametrize("moment", ["flock", "link"])
def test_a_sweep_in_the_middle_of_a_put_does_not_disturb_it(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the temporary file is locked, when it looks like a dead process's, and right before it gets its name."""
    store = DirStore(tmp_path)
    owner = fcntl if moment == "flock" else os
    original, swept = getattr(owner, moment), []

    def sweep_first(*args: Any) -> None:
        if not swept:
            swept.append(list((tmp_path / "log").iterdir()))
            sweep_temporary(store, "log/")
        original(*args)

    monkeypatch.setattr(owner, moment, sweep_first)
    assert store.put_if_absent("log/1", b"1")
    assert len(swept[0]) == 1
    assert store.get("log/1") == b"1"
    assert list((tmp_path / "log").iterdir()) == [tmp_path / "log" / "1"]


def test_a_put_whose_temporary_file_is_taken_away_fails_and_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems whose locks do not reach from machine to machine: never a name without its bytes."""
    store, link = DirStore(tmp_path), os.link
    monkeypatch.setattr(os, "link", lambda staged, path: (os.unlink(staged), link(staged, path)))
    with pytest.raises(Retryable, match="'log/1' cannot be written"):
        store.put_if_absent("log/1", b"1")
    assert store.list("log/") == []
    monkeypatch.setattr(os, "link", lambda staged, path: (link(staged, path), os.unlink(staged)))
    assert store.put_if_absent("log/1", b"1")
    assert not store.put_if_absent("log/1", b"2")
    assert store.get("log/1") == b"1"


def test_without_locks_nothing_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    store = DirStore(tmp_path)
    assert store.put_if_absent("log/1", b"1")
    left = tmp_path / "log" / ".2.0123456789abcdef"
    left.write_bytes(b"ha")
    sweep_temporary(store, "log/")
    assert left.exists()


HOLDER = (
    "import sys, time; from meander.state.store import DirStore, Lock; "
    "lock = Lock(DirStore(sys.argv[1]), '1'); print('held', flush=True); time.sleep(60)"
)


def test_a_lock_refuses_a_second_process_and_is_released_by_kill_9(tmp_path: Path) -> None:
    store = DirStore(tmp_path)
    owner = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(Busy, match=f"in use by a live run .process {owner.pid}.; nothing was touched"):
            Lock(store, "1")
        Lock(store, "2").release()
        owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=10)
        Lock(store, "1").release()
    finally:
        owner.kill()
        owner.communicate()


def test_a_lock_is_not_inherited_by_child_processes(tmp_path: Path) -> None:
    store = DirStore(tmp_path)
    lock = Lock(store, "1")
    code = "print('running', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"running\n"  # only then has the kernel closed what is not inherited
        lock.release()
        Lock(store, "1").release()
    finally:
        child.communicate(b"\n")


def test_a_store_url_is_a_path_or_file_or_memory(tmp_path: Path) -> None:
    assert open_store(tmp_path).url == open_store(f"file://{tmp_path}").url == f"file://{tmp_path}"
    assert open_store("memory://one").url == open_store("memory://one").url != open_store("memory://two").url
    with pytest.raises(ConfigError, match="no store for s3://"):
        open_store("s3://bucket/x")
