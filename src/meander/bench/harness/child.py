"""The main of a measuring process: does the work that its request names, and answers on a pipe. See ``isolation``."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable

from meander.bench.backfill import ours as backfill_ours
from meander.bench.backfill import peer as backfill_peer
from meander.bench.backfill.request import BackfillRequest
from meander.bench.changes import ours as changes_ours
from meander.bench.changes.ours import ChangesRequest
from meander.bench.expiry import ours as expiry_ours
from meander.bench.harness.isolation import Progress, Request
from meander.bench.harness.peers import PEERS, run_peer
from meander.bench.harness.statistics import Json
from meander.bench.modify import ours as modify_ours
from meander.bench.modify import peer as modify_peer
from meander.bench.modify.request import ModifyRequest
from meander.bench.nexmark import ours as nexmark_ours
from meander.bench.nexmark import peer as nexmark_peer
from meander.bench.nexmark.request import NexmarkRequest
from meander.bench.python_state import ours as python_state_ours
from meander.bench.python_state import peer as python_state_peer
from meander.bench.python_state.request import PythonStateRequest
from meander.bench.rescale import ours as rescale_ours
from meander.bench.rescale import peer as rescale_peer
from meander.bench.rescale.request import RescaleRequest
from meander.bench.scaling import ours as scaling_ours
from meander.bench.scaling.request import ScalingRequest
from meander.bench.throughput.ours import run_meander


def _totals(fields: Json, progress: Progress) -> Json:
    request = Request.from_json(fields)
    return run_peer(request, progress) if request.system in PEERS else run_meander(request, progress)


def _rescale(fields: Json, progress: Progress) -> Json:
    request = RescaleRequest.from_json(fields)
    return rescale_peer.run(request, progress) if request.strategy is None else rescale_ours.run(request, progress)


def _scaling(fields: Json, progress: Progress) -> Json:
    return scaling_ours.run(ScalingRequest.from_json(fields), progress)


def _nexmark(fields: Json, progress: Progress) -> Json:
    request = NexmarkRequest.from_json(fields)
    return nexmark_peer.run(request, progress) if request.system in PEERS else nexmark_ours.run(request, progress)


def _python_state(fields: Json, progress: Progress) -> Json:
    request = PythonStateRequest.from_json(fields)
    return (
        python_state_ours.run(request, progress) if request.system in python_state_ours.FORMS else python_state_peer.run(request, progress)
    )


def _expiry(fields: Json, progress: Progress) -> Json:
    return expiry_ours.run(expiry_ours.ExpiryRequest.from_json(fields), progress)


def _backfill(fields: Json, progress: Progress) -> Json:
    request = BackfillRequest.from_json(fields)
    return backfill_peer.run(request, progress) if request.system in PEERS else backfill_ours.run(request, progress)


def _modify(fields: Json, progress: Progress) -> Json:
    request = ModifyRequest.from_json(fields)
    return modify_ours.run(request, progress) if request.system == "meander" else modify_peer.run(request, progress)


def _changes(fields: Json, progress: Progress) -> Json:
    return changes_ours.run(ChangesRequest.from_json(fields), progress)


WORK: dict[str, Callable[[Json, Progress], Json]] = {
    Request.work: _totals,
    RescaleRequest.work: _rescale,
    ScalingRequest.work: _scaling,
    NexmarkRequest.work: _nexmark,
    PythonStateRequest.work: _python_state,
    expiry_ours.ExpiryRequest.work: _expiry,
    BackfillRequest.work: _backfill,
    ChangesRequest.work: _changes,
    ModifyRequest.work: _modify,
}


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise a peer's workers are some other Python, without Arrow
    asked = json.loads(sys.stdin.read())
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    spoken = time.monotonic()

    def progress(epoch: int | str) -> None:
        nonlocal spoken
        if isinstance(epoch, str) or time.monotonic() - spoken > 1.0:
            spoken = time.monotonic()
            print(json.dumps({"epoch": epoch}), file=answers)

    try:
        answer = WORK[asked["work"]](asked["request"], progress)
    except Exception:
        print(json.dumps({"error": traceback.format_exc()}), file=answers)
        return
    print(json.dumps({"answer": answer}), file=answers)


if __name__ == "__main__":
    main()
