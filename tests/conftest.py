"""For all tests: how hypothesis chooses its examples; and servers, started when asked for.

Without deadlines, since machines are shared and a slow one has no bug. The same examples every time, so that a change is judged by what it
changes; ``MEANDER_EXPLORE=1`` tries others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests import servers

settings.register_profile(
    "meander",
    deadline=None,
    print_blob=True,
    derandomize="MEANDER_EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("meander")

# What this process ignores, the ones that it starts would ignore as well: under nohup, or in the background of a shell's script. A handler
# is not passed on, and does nothing here either.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database of a real Redis; a prefix is to be added."""
    with servers.redis(tmp_path_factory.mktemp("redis")) as (_, port):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def s3_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a real S3 server with a bucket ``bucket``; the environment has its credentials."""
    with servers.s3(tmp_path_factory.mktemp("s3")) as port, pytest.MonkeyPatch.context() as environment:
        for name, value in servers.KEYS.items():
            environment.setenv(name, value)
        yield f"http://127.0.0.1:{port}"
