"""For all tests: how hypothesis chooses its examples; which tests may start Java, and come first; and servers, started when asked for.

Without deadlines, since machines are shared and a slow one has no bug. The same examples every time, so that a change is judged by what it
changes; ``MEANDER_EXPLORE=1`` tries others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests import servers
from tests.drivers import Child

import meander as md

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

# Nobody cuts the power while tests run, and a test of twenty epochs would wait for the disk some four hundred times. Where a sync is needed
# tests/simulation/test_powerloss.py knows: it looks at the calls. Processes that tests start do wait.
os.fsync = os.fdatasync = lambda fd: None

DRIVER = Path(__file__).parent / "spark" / "child.py"
NO_JAVA = str(Path(__file__).with_name("no_java"))
"""The home of a Java that refuses to start, and says why."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Spark come first. pytest-xdist gives a process one half of the list, and then what the other has not begun: so one process
    has all tests on Spark, and one session; and what is left at the end is small."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests without the marker ``spark`` get no Java: `make test-fast` must be able to leave out all others."""
    if item.get_closest_marker("spark") is not None:
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", NO_JAVA)
        return (yield)


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


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session of all tests on Spark that need no other one."""
    session = md.spark(master="local[2]", app_name="meander-tests")
    yield session
    session.stop()


@pytest.fixture
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts drivers, and leaves none behind."""
    started: list[Child] = []
    folder = tmp_path_factory.mktemp("children")

    def start(script: str | Path = DRIVER, **request: Any) -> Child:
        started.append(Child(request, folder / f"{len(started)}.out", script))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
        one.sweep()
