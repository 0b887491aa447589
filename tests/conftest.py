"""For all tests: how hypothesis chooses its examples; and servers, started when asked for.

Without deadlines, since machines are shared and a slow one has no bug. The same examples every time, so that a change is judged by what it
changes; ``MEANDER_EXPLORE=1`` tries others.
"""

from __future__ import annotations

import os
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
