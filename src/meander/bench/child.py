"""The main of a measuring process: runs one system as its request says, and answers on a pipe. See ``isolation``."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

from meander.bench.isolation import Request
from meander.bench.ours import run_meander
from meander.bench.peers import PEERS, run_peer


def main() -> None:
    request = Request.from_json(json.loads(sys.stdin.read()))
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    spoken = time.monotonic()

    def progress(epoch: int) -> None:
        nonlocal spoken
        if time.monotonic() - spoken > 1.0:
            spoken = time.monotonic()
            print(json.dumps({"epoch": epoch}), file=answers)

    try:
        answer = run_peer(request, progress) if request.system in PEERS else run_meander(request, progress)
    except Exception:
        print(json.dumps({"error": traceback.format_exc()}), file=answers)
        return
    print(json.dumps({"answer": answer}), file=answers)


if __name__ == "__main__":
    main()
