"""A flow killed with SIGKILL in the middle and started again: nothing is lost and nothing is doubled.

Run it (about twenty seconds, most of them two starts of Spark):

    python examples/crash_and_resume.py

Expect two processes on one store: the first is killed with kill -9 after a few epochs, the second goes on where the log ends. The
sum over the state, the sum over the published files and the input itself must then be equal to the last bit; otherwise it exits
with code 1.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

import meander as md

EVENTS, KEYS = 300_000, 500
KILL_AFTER = 3  # epochs


def build(folder: Path) -> md.Flow:
    """Every published row says how many events its key has had: the newest row of each key must add up to all of them."""
    flow = md.Flow("crash")
    (
        flow.source("events", md.generator("key_value", events=EVENTS, keys=KEYS, seed=7, max_rows_per_epoch=30_000))
        .key_by("key")
        .aggregate(md.count().alias("n"), md.sum("value").alias("total"), name="totals")
        .sink("out", md.parquet(folder / "out"))
    )
    return flow


def work(folder: Path) -> None:
    """What the process that will be killed does."""
    with build(folder).start(store=folder / "state", parallelism=2) as run:
        run.await_termination()
        print(f"  process {os.getpid()} finished after epoch {run.status()['epoch']}", flush=True)


def spawn(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--work", str(folder)], stderr=subprocess.DEVNULL)


def published(folder: Path) -> list[int]:
    """The epochs that a reader of the output folder sees."""
    return sorted({int(file.name.split("-")[1]) for file in (folder / "out").glob("*.parquet")})


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="meander-crash-") as name:
        folder = Path(name)
        first = spawn(folder)
        print(f"started process {first.pid}; it will be killed after {KILL_AFTER} epochs")
        while len(published(folder)) < KILL_AFTER:
            if first.poll() is not None:
                raise SystemExit("the first process ended before it could be killed; is Spark there? Try examples/orders.py")
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
        first.wait()
        print(f"  kill -9 {first.pid}: epochs {published(folder)} are published, the next was under way")

        second = spawn(folder)
        print(f"started process {second.pid} on the same store")
        if second.wait() != 0:
            raise SystemExit("the second process failed; run this file with --work FOLDER to see why")
        return check(folder)


def check(folder: Path) -> int:
    """State, output and input, each counted for itself."""
    state = pl.DataFrame(md.read_state(folder / "state", "totals")).sort("key")
    files = sorted((folder / "out").glob("*.parquet"))  # names begin with the epoch
    output = pl.concat([pl.read_parquet(file) for file in files]).unique("key", keep="last", maintain_order=True).sort("key")
    source = md.generator("key_value", events=EVENTS, keys=KEYS, seed=7)
    expected = (
        source.read({"partition": 0, "start": 0, "count": EVENTS}).frame.group_by("key").agg(pl.len().cast(pl.Int64).alias("n")).sort("key")
    )
    epochs = published(folder)
    same = {
        "state counts every event once": state.select("key", "n").equals(expected),
        "output counts every event once": output.select("key", "n").equals(expected),
        "output and state agree to the last bit": output.equals(state),
        "every epoch is published once, in order": epochs == list(range(1, len(epochs) + 1)),
    }
    print(f"{len(epochs)} epochs, {state['n'].sum():,} events in the state, {EVENTS:,} in the input")
    for claim, holds in same.items():
        print(f"  {'yes' if holds else 'NO '}  {claim}")
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(Path(sys.argv[2]))
    else:
        sys.exit(main())
