"""The tutorial is followed to the letter: its files are written, its commands run, and each shows what the page says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
PATIENCE = 120.0
"""Seconds until a flow that was started answers, or its state has what the page says."""
READS = ("meander state", "meander status")
"""Commands that may be repeated until the flow has come so far."""


class Block(NamedTuple):
    """A fenced block: its language, its title (a file, or a terminal), and its text."""

    language: str
    title: str
    text: str


def blocks() -> list[Block]:
    found = re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(*parts) for parts in found]


def matches(expected: str, shown: str) -> bool:
    """Line by line; ``…`` stands for anything. Empty lines and spaces at the end do not count."""

    def lines(text: str) -> list[str]:
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    patterns = [".*".join(re.escape(part) for part in line.split("…")) for line in lines(expected)]
    found = lines(shown)
    return len(patterns) == len(found) and all(re.fullmatch(p, line) for p, line in zip(patterns, found, strict=True))


@pytest.fixture
def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Terminals:
    """The two terminals of the page, both in one folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": self.path, "MEANDER_URL": f"http://127.0.0.1:{port}"}
        self.flow: subprocess.Popen[bytes] | None = None

    def first(self, command: str) -> None:
        """Starts the flow, and returns when it answers."""
        command = "exec " + command.replace("--http", f"--http {self.port}")
        with (self.folder / "terminal-1.log").open("ab") as log:
            self.flow = subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE
        while self._run("meander status").returncode:
            assert self.flow.poll() is None, self.log()
            assert time.monotonic() < end, self.log()

    def second(self, command: str, expected: str | None) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            done = self._run(command)
            right = not done.returncode and (expected is None or matches(expected, done.stdout))
            if right or not command.startswith(READS) or time.monotonic() > end:
                break
        assert right, f"{command}\n{done.stdout}{done.stderr}\n--- instead of\n{expected}\n--- the flow\n{self.log()}"
        if command.startswith("kill ") and self.flow is not None:
            assert self.flow.wait(30) == -signal.SIGKILL

    def log(self) -> str:
        return (self.folder / "terminal-1.log").read_text()

    def close(self) -> None:
        if self.flow is not None and self.flow.poll() is None:
            self.flow.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.flow.wait(60)
            self.flow.kill()

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        command = f"set -euo pipefail\n{command}"
        return subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def terminals(tmp_path: Path, free_port: int) -> Iterator[Terminals]:
    opened = Terminals(tmp_path, free_port)
    yield opened
    opened.close()


@pytest.mark.spark
@pytest.mark.slow
def test_who_follows_the_tutorial_sees_what_it_says(terminals: Terminals) -> None:
    page = blocks()
    for block, following in zip(page, [*page[1:], None], strict=True):
        if block.language == "python":
            (terminals.folder / block.title).write_text(block.text)
        elif block.title == "terminal 1":
            terminals.first(block.text)
        elif block.title == "terminal 2":
            terminals.second(block.text, following.text if following and following.language == "text" else None)
    assert terminals.flow is not None
    assert terminals.flow.poll() is None, terminals.log()


def test_every_block_of_the_tutorial_is_a_file_a_terminal_or_what_is_shown() -> None:
    kinds = {(block.language, block.title) for block in blocks()}
    assert kinds == {("python", "orders.py"), ("python", "read.py"), ("sh", "terminal 1"), ("sh", "terminal 2"), ("text", "")}
    assert PAGE.read_text().count("\n```") == 2 * len(blocks())
