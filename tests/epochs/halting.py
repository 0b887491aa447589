"""A driver process that dies, or stands still, inside a put: between writing a temporary file and giving it its name.

python -m tests.epochs.halting FOLDER NTH kill|wait
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests.simulation.steady import go_on, take_over

from meander.clock import SystemClock
from meander.errors import MeanderError
from meander.state import log as log_module
from meander.state.stores.contract import DirStore


def main() -> None:
    folder, nth, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    link, calls = os.link, 0

    def halt(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == nth and what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if calls == nth:
            print("halted", flush=True)
            sys.stdin.readline()
        link(*args)

    os.link = halt  # type: ignore[assignment]
    log_module.SNAPSHOT_EVERY = 3
    try:
        go_on(take_over(DirStore(folder), clock=SystemClock()), 6)
        print("finished")
    except MeanderError as error:
        print(type(error).__name__)


if __name__ == "__main__":
    main()
