"""Starting Spark for a command: the JVM's greetings are swallowed, whatever else it says is passed on."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import meander as md

_GREETINGS = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting default log level to|To adjust logging level use"
    rb"|WARN NativeCodeLoader|WARN Utils: (Your hostname|Set SPARK_LOCAL_IP|Service '\w+' could not bind)"
)


def start_spark(master: str | None, app_name: str) -> Any:
    """A session as ``md.spark`` makes it, without its greetings on the terminal."""
    with _without_greetings():
        return md.spark(master=master, app_name=app_name)


@contextmanager
def _without_greetings() -> Iterator[None]:
    """Standard error through a filter. The JVM inherits the filter's end and keeps it; this process has its own back afterwards."""
    sys.stderr.flush()
    terminal = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, terminal), name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)


def _pass_on(reading: int, terminal: int) -> None:
    with open(reading, "rb") as lines, open(terminal, "wb", buffering=0) as out:
        for line in lines:
            if not _GREETINGS.search(line):
                out.write(line)
