"""A steward as it runs beside an executor: who answers what, at which priority, and that nobody is left when the executor goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from meander.cache.client import Peer, Unreachable
from meander.cache.disk import Cache
from meander.cache.ranges import SMALL
from meander.state.segment import HASH, Segment, encode_segment

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
_KEY_GROUPS = 4
FRAME = pl.DataFrame({HASH: (np.arange(1000, dtype=np.uint64) << np.uint64(54)), "n": range(1000)})


def wait(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def executor_cache(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], str]]:
    """An executor (a process that sleeps), its steward, and the steward's address."""
    folder = tmp_path / "household"
    Cache(folder / "cache").add("segments/a", encode_segment(FRAME))
    Cache(folder / "cache").add("segments/c", encode_segment(FRAME[:3]))
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as executor,
        subprocess.Popen([sys.executable, "-m", "meander.cache.steward", str(folder)], stdin=subprocess.PIPE) as steward,
    ):
        try:
            orders = {"store": str(tmp_path / "store"), "secret": "s", "key_groups": _KEY_GROUPS, "limit": 1 << 30}
            assert steward.stdin is not None
            steward.stdin.write(json.dumps({**orders, "host": "127.0.0.1", "executor": executor.pid}).encode() + b"\n")
            steward.stdin.close()
            assert wait((folder / "steward.json").exists)
            yield executor, steward, json.loads((folder / "steward.json").read_text())["address"]
        finally:
            executor.kill()
            steward.kill()


def test_keys_are_answered_at_normal_priority_and_the_rest_at_a_low_one(
    executor_cache: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], str],
) -> None:
    _, steward, address = executor_cache
    peer = Peer(address, "s")
    missing, rows, none = peer.rows(["segments/b", "segments/a", "segments/c"], FRAME[HASH][[3, 500, 999]].to_numpy())
    assert missing is None
    assert rows is not None
    assert Segment("a", rows).frame().equals(FRAME[[3, 500, 999]])
    assert none is not None
    assert none.size == 0
    part = peer.part("segments/a", 0b0010)
    assert part is not None
    assert Segment("a", part).frame()["n"].to_list() == list(range(256, 512))
    (background,) = children(steward.pid)
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, steward.pid) == ours
    assert os.getpriority(os.PRIO_PROCESS, background) == min(19, ours + 10)
    with pytest.raises(Unreachable):
        Peer(address, "another secret").rows(["segments/a"], FRAME[HASH][:1].to_numpy())


@pytest.mark.many
def test_nobody_is_left_when_the_executor_goes(executor_cache: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], str]) -> None:
    executor, steward, _ = executor_cache
    (background,) = children(steward.pid)
    executor.kill()
    executor.wait()
    assert steward.wait(20) == 0
    assert wait(lambda: is_gone(background))


@pytest.mark.many
def test_a_steward_that_lost_its_background_process_makes_way_for_another(
    executor_cache: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], str],
) -> None:
    _, steward, _ = executor_cache
    (background,) = children(steward.pid)
    os.kill(background, 9)
    assert steward.wait(20) == 0


def test_what_an_executor_has_of_a_segment_is_read_as_one_and_not_fetched_again(
    executor_cache: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    """After state went forth and back there are several parts of one segment: a lookup wants its key groups in one piece."""
    _, _, address = executor_cache
    (tmp_path / "store" / "segments").mkdir(parents=True)
    data = encode_segment(FRAME.with_columns(text=pl.Series([f"{number}" * 2000 for number in range(1000)])))
    assert data.size > SMALL, "a small one would come whole"
    (tmp_path / "store" / "segments" / "b").write_bytes(data)
    cache = Cache(tmp_path / "household" / "cache")
    peer = Peer(address, "s")
    for groups, fetched in ((0b0001, True), (0b0100, True), (0b0101, False)):
        before = peer.fetched()["store"]
        peer.fetch([["segments/b", data.size, f"{groups:x}", None]])
        assert wait(lambda groups=groups: cache.missing("segments/b", groups) == 0)
        assert wait(lambda: peer.fetched()["pending"] == 0)
        assert (peer.fetched()["store"] > before) == fetched, "what is there is not fetched again"
    joined = cache.segment("segments/b", 0b0101, _KEY_GROUPS)
    assert joined is not None
    assert cache.segment("segments/b", 0b0111, _KEY_GROUPS) is None
    rows = joined.frame()
    assert rows.get_column("n").to_list() == [*range(256), *range(512, 768)]


def test_an_answer_without_rows_does_not_wait_for_a_large_import() -> None:
    program = (
        "import sys; import numpy as np; import pyarrow as pa; import polars as pl; import meander.cache.steward;"
        "from meander.state.segment import HASH, Segment, encode_batch, encode_segment, rows_of_hashes;"
        "frame = pl.DataFrame({HASH: np.arange(9, dtype=np.uint64), 'n': range(9), 'text': ['x'] * 9, 'bytes': [b'y'] * 9});"
        "segment = Segment('a', encode_segment(frame));"
        "rows = [rows_of_hashes(segment, np.array([h], np.uint64)) for h in (3, 99)];"
        "assert Segment('b', encode_batch(rows[0])).rows == 1; assert rows[1] is None;"
        "assert Segment('c', encode_segment(frame[:0])).rows == 0; assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
