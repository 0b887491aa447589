"""Spark's own standalone cluster from the pip package: a master, workers, and the list of a
worker's executors.

Each is a child process in a session of its own, so that a Ctrl-C in the terminal reaches only its
parent, and the parent decides in which order things end. It dies with its parent, however that dies
(on Linux). Its output goes to a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from meander.clock import Clock
from meander.errors import ConfigError
from meander.on_spark.session import executors, is_local
from meander.processes import ProcessId, words_below

_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_PATIENCE = 60.0
_PR_SET_PDEATHSIG = 1


class SparkProcess:
    """One daemon of a standalone cluster."""

    last_signal = signal.SIGTERM
    """How it is ended."""

    def __init__(self, kind: str, arguments: list[str], environment: dict[str, str], logs: Path, clock: Clock) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.name, self.log = kind.rsplit(".", 1)[1].lower(), logs / f"{kind.rsplit('.', 1)[1].lower()}.log"
        self._clock = clock
        command = [str(Path(_find_spark_home()) / "bin" / "spark-class"), kind, *arguments]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**_environment(logs), **environment},
                start_new_session=True,
                preexec_fn=_dying_with_parent(self.last_signal),
            )

    def check(self) -> None:
        """ConfigError where it has ended by itself."""
        code = self.process.poll()
        if code is not None:
            raise ConfigError(f"Spark's {self.name} has ended with exit code {code}: {_last_words(self.log)}; {self.log} has more")

    def wait_for_port(self, host: str, port: int) -> None:
        deadline = self._clock.monotonic() + _PATIENCE
        while not listens(host, port):
            self.check()
            if self._clock.monotonic() > deadline:
                raise ConfigError(f"Spark's {self.name} does not listen on {host}:{port} after {_PATIENCE:.0f} s; {self.log} may say why")
            self._clock.sleep(0.1)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(self.last_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Master(SparkProcess):
    """Where workers and drivers meet."""

    def __init__(self, host: str, port: int, logs: Path, clock: Clock) -> None:
        if listens(host, port):
            raise ConfigError(
                f"port {port} on {host} is in use: take another --spark-port, or, if a Spark master is there, --master spark://{host}:{port}"
            )
        self.url = f"spark://{host}:{port}"
        super().__init__(_MASTER, ["--host", host, "--port", str(port), "--webui-port", "0"], {"SPARK_LOCAL_IP": host}, logs, clock)
        try:
            self.wait_for_port(host, port)
        except BaseException:
            self.stop()
            raise


class Worker(SparkProcess):
    """Offers cores and memory to a master, and runs executors on them.

    It is killed, not asked to end: while a worker shuts down, its master takes every executor that it ends for a failed one and starts
    another there, which fails at once; after ten of these, where no other worker is, the master throws the whole application out.
    """

    last_signal = signal.SIGKILL

    def __init__(self, master: str, host: str, port: int, cores: int, memory: str, logs: Path, clock: Clock) -> None:
        if listens(host, port):
            raise ConfigError(f"port {port} on {host} is in use, by another task manager perhaps: take another --port")
        arguments = ["--host", host, "--port", str(port), "--cores", str(cores), "--memory", memory, "--webui-port", "0"]
        self._scratch = tempfile.mkdtemp(prefix="meander-task-manager-")
        environment = {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": os.environ.get("SPARK_LOCAL_DIRS", self._scratch)}
        super().__init__(_WORKER, [*arguments, "--work-dir", str((logs / "work").absolute()), master], environment, logs, clock)

    def executors(self, application: str | None = None) -> list[str]:
        """The ids of its executors, those of one application where it is named: their command lines have them."""
        mine = self._executor_processes().values()
        return sorted({_after("--executor-id", words) for words in mine if not application or _after("--app-id", words) == application})

    def stop(self) -> None:
        """End it and its executors, and remove what they kept on this disk."""
        mine = [ProcessId.of(pid) for pid in self._executor_processes()]
        super().stop()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in mine:
                if one.is_running:  # and not another one that has its number now
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one.pid, number)
            deadline = self._clock.monotonic() + 10.0
            while any(one.is_running for one in mine) and self._clock.monotonic() < deadline:
                self._clock.sleep(0.05)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _executor_processes(self) -> dict[int, list[str]]:
        return {pid: words for pid, words in words_below(self.process.pid).items() if "--executor-id" in words}


def wait_for_executors(context: SparkContext, clock: Clock, check: Callable[[], None] = lambda: None) -> None:
    """Return when there is one. A local Spark is its own."""
    while not is_local(context) and set(executors(context)) <= {"driver"}:
        check()
        clock.sleep(0.2)


def import_paths(*folders: str | Path) -> str:
    """A PYTHONPATH for executors: where this package is, what this process was given, and these folders."""
    package = Path(__file__).resolve().parents[2]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(path) for path in ("" if "site-packages" in package.parts else package, *given, *folders)]
    return os.pathsep.join(dict.fromkeys(path for path in paths if path))


def listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except OSError:
        return False


def _environment(logs: Path) -> dict[str, str]:
    """Executors inherit a worker's environment: the Python and the packages of the process that
    started it."""
    return {
        **os.environ,
        "SPARK_DAEMON_MEMORY": os.environ.get("SPARK_DAEMON_MEMORY", "512m"),
        "SPARK_DAEMON_JAVA_OPTS": os.environ.get("SPARK_DAEMON_JAVA_OPTS", "-XX:TieredStopAtLevel=1"),
        "SPARK_LOG_DIR": str(logs.absolute()),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONPATH": import_paths(),
    }


def _dying_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork: after it, only a call is safe
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, number)


def _last_words(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Exception" in line or "Error" in line or "ERROR" in line]
        if lines:
            return (errors or lines)[-1][:300]
    return "without a word"


def _after(option: str, words: list[str]) -> str:
    return words[words.index(option) + 1] if option in words else ""
