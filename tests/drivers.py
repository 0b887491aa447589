"""Driver processes that can be killed, and the input that they read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl


def write_input(folder: Path, files: int, rows: int, keys: int, seed: int = 0) -> Path:
    """Parquet files of (key, value); values are exact in binary, so that sums are the same in any order."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(files):
        frame = pl.DataFrame({"key": rng.integers(0, keys, rows), "value": rng.integers(0, 1000, rows) * 0.25})
        frame.write_parquet(folder / f"{number:04d}.parquet")
        os.utime(folder / f"{number:04d}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


ROOT = Path(__file__).resolve().parents[1]


class Child:
    """A driver process. Its output goes to a file: a pipe would stay open in what a killed driver leaves behind."""

    def __init__(self, request: dict[str, Any], output: Path, script: str | Path) -> None:
        self._output = output
        with output.open("w") as out, output.with_suffix(".err").open("w") as err:
            command = [sys.executable, str(script), json.dumps(request)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)

    def wait_started(self, timeout: float = 60) -> None:
        self.wait_for("started", timeout)

    def wait_for(self, text: str, timeout: float) -> None:
        """Until it has printed this."""
        deadline = time.monotonic() + timeout
        while text not in self._output.read_text():
            assert self.process.poll() is None, self._output.with_suffix(".err").read_text()[-2000:]
            assert time.monotonic() < deadline, f"the child does not say {text!r}"
            time.sleep(0.05)

    def finish(self, timeout: float = 120) -> tuple[int, dict[str, Any]]:
        """The exit code (negative: the signal that killed it) and the last line it printed as JSON."""
        code = self.process.wait(timeout)
        self.sweep()
        lines = [line for line in self._output.read_text().splitlines() if line.startswith("{")]
        return code, json.loads(lines[-1]) if lines else {"stderr": self._output.with_suffix(".err").read_text()[-3000:]}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.sweep()

    def sweep(self) -> None:
        """What a killed driver leaves behind (its JVM notices only after a while)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
