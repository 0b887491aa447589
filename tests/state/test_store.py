"""Stores: one winner per name, what is written is there, and a lock that dies with its owner.

The contract is tested on every store, on real servers where it needs one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.memory_store import MemoryStore
from tests.servers import BUCKET

from meander.errors import Busy, ConfigError, Retryable, Unavailable
from meander.state.stores.contract import DirStore, Lock, Store, open_store, sweep_temporary

KINDS = ["memory", "folder", "redis", "s3", *os.environ.get("MEANDER_TEST_STORE", "").split()]
"""The variable has the address of a store that is being added: see docs/extending.md."""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def make_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own for every test, that other processes can open, too."""
    if kind == "redis":
        return f"{request.getfixturevalue('redis_url')}/tests/{tmp_path.name}"
    if kind == "s3":
        return f"s3://{BUCKET}/tests/{tmp_path.name}?endpoint={request.getfixturevalue('s3_bucket')}"
    return kind.format(folder=tmp_path) if "://" in kind else str(tmp_path / "deep" / "store")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else open_store(make_url(request.param, request, tmp_path))


@pytest.fixture(params=KINDS[1:])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_url(request.param, request, tmp_path)


def test_what_is_put_is_there_until_it_is_deleted(store: Store) -> None:
    store.put("a/b/one", b"1")
    assert (store.get("a/b/one"), bytes(memoryview(store.map("a/b/one")))) == (b"1", b"1")
    assert store.list("a/") == ["a/b/one"]
    store.delete("a/b/one")
    store.delete("a/b/one")
    assert (store.get("a/b/one"), store.map("a/b/one"), store.list("a/"), store.list("z/")) == (None, None, [], [])


def test_many_names_are_deleted_together_also_those_that_are_gone(store: Store) -> None:
    names = [f"a/{number}" for number in range(1100)]
    for name in [*names[:30], names[-1], "a/other"]:
        store.put(name, b"1")
    store.delete_all(names)
    store.delete_all([])
    assert store.list("a/") == ["a/other"]


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


def test_a_range_is_cut_where_the_bytes_end(store: Store) -> None:
    store.put("segments/one", pa.py_buffer(b"0123456789"))
    store.put("segments/empty", b"")
    ranges = [(0, 4), (3, 3), (8, 10), (10, 1), (99, 5), (2, 0), (0, 10)]
    assert [store.get_range("segments/one", *one) for one in ranges] == [b"0123", b"345", b"89", b"", b"", b"", b"0123456789"]
    assert (store.get_range("segments/empty", 0, 5), store.get("segments/empty")) == (b"", b"")
    assert (store.get_range("segments/none", 0, 5), store.get_range("segments/none", 0, 0)) == (None, None)


def test_a_put_replaces_what_its_writer_put_before(store: Store) -> None:
    store.put("lease/1", b"a longer first")
    store.put("lease/1", b"second")
    assert (store.get("lease/1"), store.list("lease/")) == (b"second", ["lease/1"])


@pytest.mark.parametrize("name", ["log/00000001/000000000409", "segments/a b/ü+%20&=#?/1", "segments/x/~(1)'*,;:@!$.arrow"])
def test_names_come_back_as_they_were_given(store: Store, name: str) -> None:
    folder = name.rsplit("/", 1)[0] + "/"
    assert (store.put_if_absent(name, b"1"), store.put_if_absent(name, b"2")) == (True, False)
    assert (store.get(name), store.get_range(name, 0, 1), store.list(folder)) == (b"1", b"1", [name])
    store.delete(name)
    assert store.list("") == []


def test_a_folder_is_not_its_neighbour_with_a_longer_name(store: Store) -> None:
    for name in ("log/1", "log2/1", "log/1/2" if isinstance(store, MemoryStore) else "log/2/2"):
        store.put(name, b"")
    assert all(name.startswith("log/") for name in store.list("log/"))
    assert (len(store.list("log/")), len(store.list("")), store.list("lo/")) == (2, 3, [])


@pytest.mark.many
def test_a_listing_has_more_names_than_a_page_of_the_server(store: Store) -> None:
    names = {f"segments/{n % 7}/{n:05d}" for n in range(1203)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b""), names))
    found = store.list("segments/")
    assert (len(found), set(found)) == (1203, names)


@pytest.mark.many
def test_large_objects_go_up_and_come_down_whole(store: Store) -> None:
    data = np.arange(10_000_000, dtype=np.int32).tobytes()
    store.put("segments/large", pa.py_buffer(data))
    assert store.map("segments/large") == pa.py_buffer(data)
    assert store.get_range("segments/large", 39_999_990, 100) == data[-10:]


def test_a_store_travels_to_other_processes(url: str) -> None:
    opened = open_store(url)
    opened.put("a/1", b"here")
    again = pickle.loads(pickle.dumps(opened))
    assert (again.url, again.get("a/1"), open_store(opened.url).get("a/1")) == (opened.url, b"here", b"here")


@pytest.mark.many
def test_of_8_processes_exactly_one_wins_each_name(url: str) -> None:
    code = (
        "import sys; from meander.state.stores.contract import open_store; s = open_store(sys.argv[1]); sys.stdin.readline(); "
        "print(*[n for n in range(25) if s.put_if_absent(f'log/{n}', sys.argv[2].encode())])"
    )
    command = [sys.executable, "-c", code, url]
    writers = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) for n in range(8)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    won = {who: [int(n) for n in writer.communicate(timeout=60)[0].split()] for who, writer in enumerate(writers)}
    assert sorted(n for names in won.values() for n in names) == list(range(25))
    store = open_store(url)
    assert all(store.get(f"log/{n}") == str(who).encode() for who, names in won.items() for n in names)
    folder = store.local("log")
    assert folder is None or len(list(folder.iterdir())) == 25, "no temporary files are left"


WRITER = """
import sys
from meander.state.stores.contract import open_store
store = open_store(sys.argv[1])
print("begins", flush=True)
for n in range(1_000_000):
    data = n.to_bytes(4, "big") * (1 << 18)
    if store.put_if_absent(f"log/{n}", data):
        store.put(f"segments/{n}", data)
        print(n, flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_amid_its_puts_leaves_whole_objects_or_none(url: str) -> None:
    """Objects of 1 MB, killed six times at moments of its choice. What was acknowledged is there; what is listed can be read whole."""
    moments, acknowledged = random.Random(7), set()
    store = open_store(url)
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True, env=environment())
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begins\n"
        time.sleep(moments.uniform(0.05, 0.4))
        writer.kill()
        acknowledged |= {int(line) for line in writer.communicate()[0].splitlines() if line.isdigit()}
        for folder in ("log", "segments"):
            names = store.list(f"{folder}/")
            for name in names:
                assert store.get(name) == int(name.split("/")[1]).to_bytes(4, "big") * (1 << 18), f"{name} is torn"
            assert {f"{folder}/{n}" for n in acknowledged} <= set(names)
    assert acknowledged


def test_a_put_that_fails_leaves_what_was_there_before_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write = DirStore(tmp_path), os.write
    store.put("replicas/1/a", b"the first")

    def full(fd: int, data: Any) -> int:
        if len(data) > 1:
            return write(fd, data[:1])
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Retryable, match="no space left"):
        store.put("replicas/1/a", b"the second")
    assert store.get("replicas/1/a") == b"the first"
    assert list((tmp_path / "replicas" / "1").iterdir()) == [tmp_path / "replicas" / "1" / "a"]


def test_a_lock_holds_also_where_the_disk_is_too_full_for_its_owners_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = Lock(DirStore(tmp_path), "1")
    with pytest.raises(Busy, match="unknown process"):
        Lock(DirStore(tmp_path), "1")
    lock.release()


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
    "import sys, time; from meander.state.stores.contract import DirStore, Lock; "
    "lock = Lock(DirStore(sys.argv[1]), '1'); print('held', flush=True); time.sleep(60)"
)


def test_a_lock_refuses_a_second_process_and_is_released_by_kill_9(tmp_path: Path) -> None:
    store = DirStore(tmp_path)
    owner = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment())
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
    with pytest.raises(ConfigError, match="no store for ftp://"):
        open_store("ftp://host/x")


def test_a_folder_that_cannot_be_listed_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirStore(tmp_path)
    store.put("log/00000001/1", b"1")
    scandir = os.scandir

    def stale(path: Any) -> Any:
        if Path(path).name == "00000001":
            raise OSError(errno.ESTALE, "Stale file handle")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", stale)
    with pytest.raises(Unavailable, match="'log/' cannot be listed"):
        store.list("log/")
    assert store.list("nothing/") == []


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, Unavailable), (errno.EIO, Unavailable), (errno.EACCES, ConfigError)])
def test_a_folder_that_cannot_be_made_is_away_unless_it_is_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    store = DirStore(tmp_path / "store")

    def refuse(*_: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(kind, match="cannot be made"):
        store.put("log/1", b"1")
