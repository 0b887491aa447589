"""How a session starts, seen from a script of its own: a JVM greets once per process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meander.on_spark.session import worth_saying

SCRIPT = """
import sys
import meander as md
session = md.spark(master="local[1]")
session.sparkContext._jvm.java.lang.System.err.println("a real word of the JVM")
sys.stderr.write("and one of Python\\n")
print(session.range(3).count())
session.stop()
"""

IDLE = [
    b"Traceback (most recent call last):\n",
    b'  File "/somewhere/pyspark.zip/pyspark/daemon.py", line 264, in manager\n',
    b'  File "/somewhere/pyspark.zip/pyspark/daemon.py", line 95, in worker\n',
    b"    outfile.flush()\n",
    b"BrokenPipeError: [Errno 32] Broken pipe\n",
]


def test_the_last_words_of_idle_workers_are_not_worth_saying_and_other_tracebacks_are() -> None:
    own = [*IDLE[:3], b'  File "/home/ann/flow.py", line 3, in clean\n', *IDLE[3:]]
    other = [*IDLE[:-1], b"MemoryError\n"]
    twice = [*IDLE[:2], *IDLE]
    assert list(worth_saying([b"one\n", *IDLE, b"two\n", *IDLE])) == [b"one\n", b"two\n"]
    for said in (own, other, IDLE[:3]):
        assert list(worth_saying([b"one\n", *said])) == [b"one\n", *said]
    assert list(worth_saying(twice))[: len(IDLE[:2])] == IDLE[:2], "one that broke off is passed on"


@pytest.mark.slow
def test_a_session_starts_without_greetings_and_passes_on_everything_else() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert sorted(done.stderr.splitlines()) == ["a real word of the JVM", "and one of Python"]
