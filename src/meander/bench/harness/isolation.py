"""One measurement in a process of its own: a fresh interpreter and a fresh JVM, and nothing of either left afterwards.

The request goes in as JSON on standard input; progress and the answer come back as JSON lines on a pipe of their own, since what
Spark and its JVM print belongs into a log that is shown only when something went wrong.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from meander import MeanderError
from meander.bench.harness.processes import end_session
from meander.bench.harness.statistics import Json
from meander.bench.load.input import Input

Progress = Callable[[int | str], None]
"""Told the epoch that is done, or what is being done."""


class TookTooLong(MeanderError):
    """The child was ended because its time was over."""


class Asked(Protocol):
    """A request to a measuring child: a frozen dataclass of plain data. ``work`` is its name in
    ``child.WORK``."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    work: ClassVar[str]

    @property
    def system(self) -> str:
        """The name of the measured system, for messages."""

    @property
    def folder(self) -> str:
        """Where it keeps its state and its log."""


@dataclass(frozen=True)
class Request:
    """A request to measure one system over one input."""

    work: ClassVar[str] = "totals"
    system: str
    input: Input
    folder: str
    """Where it keeps its state; on the same disk for all."""
    master: str
    parallelism: int
    memory: str
    """The heap of the JVM."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of Spark's that are tried on top of the peers' own."""
    watch_memory_after: int | None = None
    """The epoch after which the workers' memory is watched."""

    @staticmethod
    def from_json(fields: Json) -> Request:
        return Request(**{**fields, "input": Input(**fields["input"])})


def run_isolated(request: Asked, timeout: float, progress: Progress = lambda epoch: None) -> Json:
    """The child's answer. Whatever happens, no process of the child's is alive afterwards."""
    Path(request.folder).mkdir(parents=True, exist_ok=True)
    log = Path(request.folder) / "log"
    receiving, sending = os.pipe()
    with open(log, "wb") as output, os.fdopen(receiving, "rb", buffering=0) as answers:
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "meander.bench.harness.child", str(sending)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(sending,),
                start_new_session=True,
            )
        finally:
            os.close(sending)
        try:
            assert child.stdin is not None
            with child.stdin as stdin:
                stdin.write(json.dumps({"work": request.work, "request": asdict(request)}).encode())
            return _await_answer(request, answers.fileno(), time.monotonic() + timeout, timeout, progress, log)
        finally:
            end_session(child.pid)
            child.wait()


def _await_answer(request: Asked, pipe: int, deadline: float, timeout: float, progress: Progress, log: Path) -> Json:
    pending = b""
    while True:
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TookTooLong(
                f"{request.system} did not finish within {timeout:g} s; allow more with --timeout, or measure less\n{_tail(log)}"
            )
        data = os.read(pipe, 1 << 16)
        if not data:
            raise MeanderError(f"{request.system} died without an answer; the end of its log:\n{_tail(log)}")
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            message: Json = json.loads(line)
            if "epoch" in message:
                progress(message["epoch"])
            elif "error" in message:
                raise MeanderError(f"{request.system} failed: {message['error']}")
            else:
                answer: Json = message["answer"]
                return answer


def _tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
