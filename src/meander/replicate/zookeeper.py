"""A ZooKeeper server of our own, from the jars that PySpark brings along, for trials and for single
machines.

It keeps no important data: after a start the leader is elected anew. Listens on loopback only.
"""

from __future__ import annotations

import glob
import os
import signal
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from meander.clock import Clock, SystemClock
from meander.errors import ConfigError

_TICK_MS = 100
"""Sessions end at a multiple of it: a longer tick lengthens the time without a leader."""
_SESSIONS_MS = (200, 600_000)
_PATIENCE = 30.0


class EmbeddedZooKeeper:
    """A server process, stopped by ``close``."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, clock: Clock | None = None, port: int | None = None) -> None:
        """``folder`` has its data; ``port`` is a free one where none is given."""
        clock = clock or SystemClock()
        jars = _pyspark_folder() / "jars"
        if not glob.glob(str(jars / "zookeeper-[0-9]*.jar")):
            raise ConfigError(f"there is no ZooKeeper among the jars in {jars}; say where one runs with zookeeper='host:port'")
        place = Path(tempfile.mkdtemp(prefix="meander-zookeeper-") if folder is None else folder).absolute()
        place.mkdir(parents=True, exist_ok=True)
        if port is None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = int(free.getsockname()[1])
        config = place / "zoo.cfg"
        config.write_text(
            f"dataDir={place / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime={_TICK_MS}\n"
            f"minSessionTimeout={_SESSIONS_MS[0]}\nmaxSessionTimeout={_SESSIONS_MS[1]}\n"
            "admin.enableServer=false\nmaxClientCnxns=0\nautopurge.purgeInterval=1\n"
        )
        java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java"
        self.address = f"127.0.0.1:{port}"
        with open(place / "log.txt", "w") as log:
            self._process = subprocess.Popen(
                [java, "-Xmx128m", "-cp", f"{jars}/*", "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal is for the process that started it
            )
        deadline = clock.monotonic() + _PATIENCE
        while not _answers(port):
            if self._process.poll() is not None or clock.monotonic() > deadline:
                self.close()
                raise ConfigError(f"ZooKeeper does not start; its last words are in {place / 'log.txt'}")
            clock.sleep(0.1)

    @property
    def pid(self) -> int:
        return self._process.pid

    def pause(self) -> None:
        """Stop answering, like a machine that hangs."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _pyspark_folder() -> Path:
    """Found without an import: only its files are needed."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("PySpark is not installed, and its jars have the ZooKeeper: say where one runs with zookeeper='host:port'")
    return Path(spec.origin).parent
