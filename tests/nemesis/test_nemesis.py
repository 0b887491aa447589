"""The nemesis itself: its checker sees what is wrong, its proxy does what it is told; and one short run of all of it."""

from __future__ import annotations

import http.client
import json
import os
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
from tests.nemesis import s3_proxy
from tests.nemesis.checker import Verdict, applied_calls, check_output, check_stalls
from tests.nemesis.faults import Done
from tests.nemesis.feeder import Feeder
from tests.nemesis.ledger import LEDGERS
from tests.nemesis.oracle import expected
from tests.nemesis.watcher import Watcher


@pytest.fixture
def feeder(tmp_path: Path) -> Feeder:
    made = Feeder(tmp_path / "in", seed=1, rate=100)
    made.late_allowed.set()
    for _ in range(40):
        made._write_second()
    made.close()
    return made


def write_right_output(out: Path, feeder: Feeder) -> None:
    """What a flow without a fault leaves: one epoch per sink."""
    names = {
        "counts": ["key", "n", "total"],
        "windows": ["shard", "window_start", "n", "total"],
        "late": ["seq", "key", "v", "kind", "shard", "ts"],
        "buckets": ["key", "bucket", "rows", "total"],
        "paid": ["seq", "paid", "at"],
    }
    wanted = expected(feeder.written("events"), feeder.written("payments"))
    for name, columns in names.items():
        (out / name).mkdir(parents=True)
        pl.DataFrame(list(wanted[name].elements()), schema=columns, orient="row").write_parquet(out / name / "part-0000000001-0000.parquet")
    for (shard,), rows in feeder.written("events").partition_by("shard", as_dict=True).items():
        place = out / "parts" / f"shard={str(shard).replace('%', '%25').replace('/', '%2F')}"
        place.mkdir(parents=True)
        rows.drop("shard").write_parquet(place / "part-0000000001-0000.parquet")
    (out / "calls.jsonl").write_text(json.dumps({"epoch": 1, "pid": 1, "rows": sorted(wanted["calls"])}) + "\n")


def test_the_checker_finds_nothing_where_nothing_is_wrong(feeder: Feeder, tmp_path: Path) -> None:
    write_right_output(tmp_path / "out", feeder)
    verdict = Verdict()
    check_output(verdict, tmp_path / "out", tmp_path / "out" / "calls.jsonl", feeder)
    assert verdict.findings == []
    assert all(sink["expected"] > 0 for sink in verdict.sinks.values())


@pytest.mark.many
@pytest.mark.parametrize("sink", ["counts", "windows", "late", "buckets", "paid"])
def test_the_checker_finds_a_lost_and_a_doubled_row_in_every_sink(sink: str, feeder: Feeder, tmp_path: Path) -> None:
    write_right_output(tmp_path / "out", feeder)
    place = tmp_path / "out" / sink / "part-0000000001-0000.parquet"
    rows = pl.read_parquet(place)
    rows[1:].write_parquet(place)
    verdict = Verdict()
    check_output(verdict, tmp_path / "out", tmp_path / "out" / "calls.jsonl", feeder)
    assert verdict.sinks[sink]["lost"] == 1
    assert len(verdict.findings) == 1

    rows.write_parquet(place)
    rows[:1].write_parquet(place.with_name("part-0000000002-0000.parquet"))
    verdict = Verdict()
    check_output(verdict, tmp_path / "out", tmp_path / "out" / "calls.jsonl", feeder)
    assert len(verdict.findings) == 1


def test_a_call_that_comes_too_late_is_a_lost_one(tmp_path: Path) -> None:
    lines = [{"epoch": epoch, "pid": 1, "rows": [[epoch, 0]]} for epoch in (1, 3, 2, 3)]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = Verdict()
    assert sorted(applied_calls(verdict, tmp_path / "calls.jsonl")) == [(1, 0), (3, 0)]
    assert verdict.findings == []


def test_a_stall_is_a_finding_unless_faults_explain_it() -> None:
    epochs = [(0.0, 1), (1.0, 2), (60.0, 3)]
    verdict = Verdict()
    check_stalls(verdict, epochs, [], 61.0)
    assert len(verdict.findings) == 1
    verdict = Verdict()
    check_stalls(verdict, epochs, [Done("kill driver", "driver a", 2.0, 0.0), Done("link cut", "a and b", 5.0, 10.0)], 61.0)
    assert verdict.findings == []
    assert verdict.longest_stall == 59.0


def test_the_watcher_sees_a_torn_file_and_one_that_changes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "a").mkdir(parents=True)
    watcher = Watcher(out)
    watcher.start()
    frame = pl.DataFrame({"x": [1, 2]})
    frame.write_parquet(out / "a" / ".whole")
    (out / "a" / ".whole").rename(out / "a" / "part-0000000001-0000.parquet")
    (out / "a" / "new=1").mkdir()
    (out / "a" / "new=1" / ".torn").write_bytes(b"PAR1 and no more")
    (out / "a" / "new=1" / ".torn").rename(out / "a" / "new=1" / "part-0000000002-0000.parquet")
    deadline = time.monotonic() + 10
    while watcher.files < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    (out / "a" / ".other").write_bytes(b"something else")
    (out / "a" / ".other").rename(out / "a" / "part-0000000001-0000.parquet")
    watcher.finish()
    assert watcher.rows["a"] == 2
    assert watcher.epoch == 1
    assert any("torn" in one for one in watcher.wrong)
    assert any("other content" in one for one in watcher.wrong)


class _Counting(BaseHTTPRequestHandler):
    """A server that answers how often it was asked."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        body = str(self.asked).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


ANSWERS = [(None, 200, 1), ("refused", 503, 0), ("failed_after", 500, 1), ("twice", 200, 2), ("denied", 403, 0), ("unanswered", None, 1)]


@pytest.mark.parametrize(("fault", "status", "times"), ANSWERS)
def test_the_store_fails_as_it_is_told(fault: str | None, status: int | None, times: int, tmp_path: Path) -> None:
    class Counting(_Counting):
        asked = 0

    behind = ThreadingHTTPServer(("127.0.0.1", 0), Counting)

    class Handler(s3_proxy.Handler):
        faults = s3_proxy.Faults(tmp_path / "faults.json", "1")
        server_port = behind.server_address[1]

    if fault is not None:
        (tmp_path / "faults.json").write_text(json.dumps({fault: 1.0}))
    front = s3_proxy.Server(("127.0.0.1", 0), Handler)
    for server in (behind, front):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", front.server_address[1], timeout=10)
    try:
        connection.request("GET", "/")
        if status is None:
            with pytest.raises(http.client.RemoteDisconnected):
                connection.getresponse()
        else:
            assert connection.getresponse().status == status
    finally:
        connection.close()
        for server in (front, behind):
            server.shutdown()
            server.server_close()
    assert Counting.asked == times


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_half_a_minute_of_kills_and_pauses_leaves_the_output_whole(tmp_path: Path) -> None:
    from tests.servers import find

    find("versitygw")
    command = [sys.executable, "-m", "tests.nemesis", "--minutes", "0.5", "--seed", "2", "--loopback", "--only", "kill,pause"]
    done = subprocess.run([*command, "--folder", str(tmp_path / "run")], capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["good"]
    assert report["faults"]["total"] >= 3
    assert not list(LEDGERS.glob("*")) or report["left behind"]["processes"] == []


def test_a_clock_jumps_for_a_process_that_runs(tmp_path: Path) -> None:
    place = tmp_path / "clock"
    place.write_bytes(struct.pack("=q", 0))
    asks = "import sys, time\nfor _ in sys.stdin: print(time.time(), flush=True)"
    environment = {**os.environ, "NEMESIS_CLOCK": str(place), "PYTHONPATH": str(Path(__file__).parent / "moved_clock")}
    with subprocess.Popen([sys.executable, "-c", asks], stdin=-1, stdout=-1, env=environment, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def ahead() -> float:
            print(file=child.stdin, flush=True)
            return float(child.stdout.readline()) - time.time()

        assert abs(ahead()) < 60
        with place.open("r+b") as out:
            out.write(struct.pack("=q", -3600))
        assert abs(ahead() + 3600) < 60
