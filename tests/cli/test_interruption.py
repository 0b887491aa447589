"""Signals that ask a command to end: twice, as a signal to a group of processes comes; by a closed terminal; and under ``nohup``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from meander.cli.interruption import Stop

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


def test_a_supervisor_stops_when_its_terminal_is_closed_but_not_under_nohup() -> None:
    number = signal.SIGHUP
    found = signal.getsignal(number)
    try:
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        stop = Stop()
        restore = stop.on_signals(hangup=True)
        os.kill(os.getpid(), number)
        restore()
        assert (stop.wanted.is_set(), signal.getsignal(number)) == (False, signal.SIG_IGN)
        signal.signal(number, signal.SIG_DFL)
        restore = stop.on_signals(hangup=True)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        restore()
        assert (stop.wanted.is_set(), signal.getsignal(number)) == (True, signal.SIG_DFL)
    finally:
        signal.signal(number, found)
