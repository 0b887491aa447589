"""How a session starts, seen from a script of its own: a JVM greets once per process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import meander as md
session = md.spark(master="local[1]")
session.sparkContext._jvm.java.lang.System.err.println("a real word of the JVM")
sys.stderr.write("and one of Python\\n")
print(session.range(3).count())
session.stop()
"""


def test_a_session_starts_without_greetings_and_passes_on_everything_else() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert sorted(done.stderr.splitlines()) == ["a real word of the JVM", "and one of Python"]
