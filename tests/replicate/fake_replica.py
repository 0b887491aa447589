"""A stand-in for a replica's process, without Spark: signs of life in a store that is a folder, and an end of any kind.

``fake_replica.py STORE NAME BEHAVIOUR``. Epochs are counted for all together by the time that has passed.
"""

import json
import os
import signal
import socket
import sys
import time


def main() -> None:
    store, name, behaviour = sys.argv[1:4]
    print(f"{name} does: {behaviour}", flush=True)
    if behaviour == "crash":
        print("error: there is no column 'x'", flush=True)
        sys.exit(2)
    if behaviour == "cannot be":
        record("failed", kind="FlowError", error="there is no column 'x'")
        sys.exit(2)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else lambda *_: stop(store, name))
    place = os.path.join(store, "replicas", "00000001")
    os.makedirs(place, exist_ok=True)
    number = 0
    while True:
        number += 1
        said = {
            "format": 1,
            "name": name,
            "number": number,
            "epoch": int(time.time() % 100_000 * 10),
            "process": os.getpid(),
            "host": socket.gethostname(),
            **identity(),
        }
        if behaviour != "mute":
            with open(os.path.join(place, name), "w") as out:
                out.write(json.dumps({**said, "url": os.environ.get("FAKE_REPLICAS_URL"), "at": time.time()}))
        time.sleep(0.05)
        if behaviour == "finish" and number == 10:
            record("finished")
            sys.exit(0)
        if behaviour == "fail soon" and number == 5:
            record("failed", kind="Divergent", error="something else came out")
            sys.exit(2)


def identity() -> dict[str, str]:
    """What else a sign says of its process: see meander.processes, which takes too long to import."""
    with open("/proc/sys/kernel/random/boot_id") as boot, open("/proc/self/stat") as stat:
        return {"system": f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}", "born": stat.read().rpartition(")")[2].split()[19]}


def stop(store: str, name: str) -> None:
    os.unlink(os.path.join(store, "replicas", "00000001", name))
    record("stopped")
    sys.exit(0)


def record(outcome: str, **more: str) -> None:
    with open(os.environ["MEANDER_REPLICA_ENDED"], "w") as out:
        out.write(json.dumps({"process": os.getpid(), "outcome": outcome, **more}))


if __name__ == "__main__":
    main()
