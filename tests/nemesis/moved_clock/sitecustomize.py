"""A wall clock that can be set, for one Python process: it imports this at its start where the folder is on ``PYTHONPATH``.

The file ``NEMESIS_CLOCK`` holds how many seconds the clock is ahead. It is mapped, so that a jump is seen at once. Only ``time.time``
moves, which is the clock that Meander goes by. libfaketime would move the JVM's clock, too, but it breaks Python's sleeps.
"""

import mmap
import os
import struct
import time


def move_clock(place: str) -> None:
    handle = os.open(place, os.O_RDONLY)
    mapped = mmap.mmap(handle, 8, prot=mmap.PROT_READ)
    os.close(handle)
    real = time.time
    time.time = lambda: real() + struct.unpack("=q", mapped[:8])[0]


if "NEMESIS_CLOCK" in os.environ:
    move_clock(os.environ["NEMESIS_CLOCK"])
