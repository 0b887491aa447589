"""The driver process of ``tests/spark/child.py`` without Spark: the same flow, loop, tasks, log and sinks.

python driver.py '{"store": …, "in": …, "out": …, "crash": ["put_if_absent", 4, "before"]}'
"""

from __future__ import annotations

import json
import sys

from tests.crashing import build, kill_as_asked

from meander.clock import SystemClock
from meander.settings import Settings
from meander.state.stores.contract import open_store
from meander.testing.opening import open_flow


def main() -> None:
    request = json.loads(sys.argv[1])
    kill_as_asked(request)
    settings = Settings(parallelism=2, small_epochs=True, retain_epochs=100_000)
    opened = open_flow(build(request, None), open_store(request["store"]), SystemClock(), settings, dead_letters=request["store"] + "-dead")
    opened.loop.input.look()
    while opened.loop.step(everything=True):
        pass
    print(json.dumps({"epochs": opened.loop.log.manifest.epoch}), flush=True)
    opened.close()


if __name__ == "__main__":
    main()
