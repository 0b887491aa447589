"""Real servers for the tests of the stores, each on a free port of the loopback, with its data in a folder of its own.

``make test-servers`` gets them. What cannot be had skips its tests and says so.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

BUILT = Path(__file__).resolve().parents[1] / ".servers"
KEYS = {"AWS_ACCESS_KEY_ID": "meander", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests", "AWS_REGION": "us-east-1"}
KEEPING = ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
BUCKET = "bucket"


def find(name: str) -> str:
    """The path of a server, or a skipped test."""
    path = str(BUILT / name) if (BUILT / name).exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name} on this machine: run `make test-servers`, which also says why it cannot be had")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, folder: Path, ready: Callable[[], bool] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A server from the moment it answers until the end of the block."""
    output = folder / "server.log"
    with output.open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **KEYS})
    try:
        deadline = time.monotonic() + 30
        while not (ready or (lambda: accepts(port)))():
            assert process.poll() is None, output.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def redis(folder: Path, *options: str, port: int | None = None) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A Redis that keeps what it acknowledges, unless options say otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    command = [find("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *KEEPING, *options]

    def loaded() -> bool:
        if not accepts(port):
            return False
        with Redis(port=port, password=os.environ.get("REDISCLI_AUTH")) as client:
            return int(client.info("persistence")["loading"]) == 0  # type: ignore[index]

    with running(command, port, folder, loaded) as process:
        yield process, port


@contextmanager
def s3(folder: Path) -> Iterator[int]:
    """An S3 server with one bucket."""
    port = free_port()
    data = folder / "data"
    (data / BUCKET).mkdir(parents=True)
    command = [find("versitygw"), "--access", KEYS["AWS_ACCESS_KEY_ID"], "--secret", KEYS["AWS_SECRET_ACCESS_KEY"]]
    with running([*command, "--port", f"127.0.0.1:{port}", "posix", str(data)], port, folder):
        yield port
