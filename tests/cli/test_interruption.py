"""Being told to end twice, as who signals a group of processes does."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import time
from meander.cli.interruption import interrupted_by_sigterm
try:
    with interrupted_by_sigterm():
        try:
            print("started", flush=True)
            time.sleep(60)
        finally:
            print("stopping", flush=True)
            time.sleep(0.5)
            print("stopped", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_what_was_started_is_stopped_though_one_is_told_twice() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "stopped\ninterrupted\n"
    assert process.returncode == 0
