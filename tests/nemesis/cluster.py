"""Starts what is attacked, as a user would: an S3 server, ZooKeeper, a Spark master, two workers, and ``meander run --replicas 2``.

Each is a process in a session of its own, on a host of its own. The supervisor starts replicas through a small script that moves each to
its own host and gives it a clock of its own. Everything carries the run's mark in its environment.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.nemesis.hosts import Hosts
from tests.nemesis.ledger import MARK, Ledger

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
REPLICAS = ("a", "b")
KEYS = {"AWS_ACCESS_KEY_ID": "meander", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests", "AWS_REGION": "us-east-1"}
_SPARK = """spark.executor.cores 1
spark.cores.max 2
spark.executor.memory 512m
spark.driver.memory 512m
spark.network.timeout 30s
spark.network.timeoutInterval 10s
spark.executor.heartbeatInterval 3s
"""
_DAEMON_OPTIONS = "-XX:TieredStopAtLevel=1 -Dspark.deploy.maxExecutorRetries=-1 -Dspark.worker.timeout=30 -Dspark.master.rest.enabled=false"


@dataclass
class Daemon:
    """One process that is started, and started again."""

    name: str
    host: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    cwd: Path
    starts: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self, hosts: Hosts) -> None:
        self.starts += 1
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*hosts.entering(self.host), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.cwd,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, number: int = signal.SIGTERM, patience: float = 15.0) -> bool:
        """Whether it ended by itself within the patience; else it is killed."""
        if not self.running:
            return True
        assert self.process is not None
        self.process.send_signal(number)
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True


class Cluster:
    """All of it. ``start``, ``stop``."""

    def __init__(self, folder: Path, hosts: Hosts, ledger: Ledger, mode: str, seed: int, minutes: float, disks: bool) -> None:
        self.folder, self.hosts, self.mode = folder, hosts, mode
        self._ledger = ledger
        self.disks: dict[str, Path] = {}
        for name in ("logs", "conf", "clocks", "in"):
            (folder / name).mkdir(parents=True)
        self._mount("output", int(512 + 80 * minutes), disks)
        self._mount("local1", 768, disks)
        self._mount("local2", 768, disks)
        (folder / "output" / "out").mkdir()
        (folder / "out").symlink_to(folder / "output" / "out")
        (folder / "conf" / "spark-defaults.conf").write_text(_SPARK)
        self.store_faults = folder / "store-faults.json"
        self.data = folder / "s3"
        (self.data / "bucket").mkdir(parents=True)
        self.store = f"s3://bucket/nemesis?endpoint=http://{hosts.address('s3')}:{hosts.port('s3', 9000)}"
        self._environment = self._common()
        self.daemons = {one.name: one for one in self._daemons(seed)}

    @property
    def store_folder(self) -> Path:
        """The store as the S3 server keeps it: a folder with a file per object."""
        return self.data / "bucket" / "nemesis"

    def start(self) -> None:
        for name in ("s3", "proxy", "master", *(["zookeeper"] if self.mode == "leader" else [])):
            self.daemons[name].start(self.hosts)
        self._wait("s3", 9001, "127.0.0.1")
        self._wait("s3", 9000)
        self._wait("master", 7077)
        if self.mode == "leader":
            self._wait("zookeeper", 2181)
        for name in ("worker1", "worker2", "supervisor"):
            self.daemons[name].start(self.hosts)

    def stop(self) -> list[str]:
        """End all in order, what serves the others last; what did not end when it was told."""
        slow = []
        if not self.daemons["supervisor"].stop(patience=60.0):
            slow.append("supervisor")
        for name in ("worker1", "worker2"):
            self.daemons[name].stop(signal.SIGKILL)
        for name in ("master", "zookeeper", "proxy", "s3"):
            self.daemons[name].stop()
        return slow

    def stopped(self) -> list[str]:
        """What was started, should run and does not."""
        return [name for name, daemon in self.daemons.items() if daemon.starts and not daemon.running]

    def url(self, replica: str) -> str:
        return f"http://127.0.0.1:{self.hosts.port('supervisor', 9008) + REPLICAS.index(replica)}"

    def set_clock(self, host: str, seconds: int) -> None:
        """How far a host's clock is ahead, from now on. Written in place: processes have the file mapped."""
        place = self.folder / "clocks" / host
        with open(place, "r+b" if place.exists() else "wb") as out:
            out.write(struct.pack("=q", seconds))

    # -- how each is started ----------------------------------------------------------------------------------------

    def _common(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR")}
        return {
            **kept,
            **KEYS,
            MARK: self._ledger.identity,
            "NEMESIS_FOLDER": str(self.folder),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYTHONUNBUFFERED": "1",
            "MEANDER_CODE_TOKEN": "the nemesis' own",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOG_DIR": str(self.folder / "logs"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
        }

    def _daemons(self, seed: int) -> list[Daemon]:
        hosts, python = self.hosts, sys.executable
        server = find_s3_server()
        spark = str(_spark_home() / "bin" / "spark-class")
        keys = ["--access", KEYS["AWS_ACCESS_KEY_ID"], "--secret", KEYS["AWS_SECRET_ACCESS_KEY"]]
        behind = hosts.port("s3", 9001)
        master, port = hosts.address("master"), hosts.port("master", 7077)
        found = [
            self._daemon("s3", "s3", [server, *keys, "--port", f"127.0.0.1:{behind}", "posix", str(self.data)]),
            self._daemon(
                "proxy",
                "s3",
                [
                    python,
                    str(HERE / "s3_proxy.py"),
                    hosts.address("s3"),
                    str(hosts.port("s3", 9000)),
                    str(behind),
                    str(self.store_faults),
                    str(seed),
                ],
            ),
            self._daemon("zookeeper", "zookeeper", self._zookeeper()),
            self._daemon(
                "master",
                "master",
                [spark, "org.apache.spark.deploy.master.Master", "--host", master, "--port", str(port), "--webui-port", "0"],
            ),
        ]
        for number, name in enumerate(("worker1", "worker2"), 1):
            words = [spark, "org.apache.spark.deploy.worker.Worker", "--host", hosts.address(name), "--port", str(hosts.port(name, 7078))]
            words += ["--webui-port", "0", "--cores", "4", "--memory", "4g", "--work-dir", str(self.folder / f"work{number}")]
            found.append(
                self._daemon(name, name, [*words, f"spark://{master}:{port}"], SPARK_LOCAL_DIRS=str(self.folder / f"local{number}"))
            )
        words = [python, str(HERE / "supervise.py"), str(self._launcher()), "run", str(self._flow()), "--replicas", str(len(REPLICAS))]
        words += ["--store", self.store, "--master", f"spark://{master}:{port}", "--trigger", "500ms", "--parallelism", "2"]
        words += ["--dead-letters", str(self.folder / "dead"), "--http", str(hosts.port("supervisor", 9008)), "--no-color"]
        if self.mode == "leader":
            words += ["--replication", "leader", "--zookeeper", f"{hosts.address('zookeeper')}:{hosts.port('zookeeper', 2181)}"]
        found.append(self._daemon("supervisor", "supervisor", words))
        return found

    def _daemon(self, name: str, host: str, command: list[str], **more: str) -> Daemon:
        address = self.hosts.address(host)
        environment = {**self._environment, "SPARK_LOCAL_IP": address, "SPARK_LOCAL_HOSTNAME": address, **more}
        return Daemon(name, host, command, environment, self.folder / "logs" / f"{name}.log", self.folder)

    def _flow(self) -> Path:
        """A copy: who edits the flow while it runs would have replicas that differ."""
        return Path(shutil.copy(HERE / "flow.py", self.folder / "flow.py"))

    def _launcher(self) -> Path:
        """The supervisor's Python for its replicas: goes to the host of the replica that the command line names, and is Python there."""
        script = self.folder / "replica-python"
        lines = ["#!/bin/sh", 'for word in "$@"; do [ "$before" = --replica ] && name=$word; before=$word; done', "case $name in"]
        for name in REPLICAS:
            address = self.hosts.address(name)
            self.set_clock(name, 0)
            settings = f"SPARK_LOCAL_IP={address} SPARK_LOCAL_HOSTNAME={address} NEMESIS_CLOCK={self.folder / 'clocks' / name}"
            settings += f" PYTHONPATH={HERE / 'moved_clock'}{os.pathsep}{self._environment['PYTHONPATH']}"
            enter = " ".join(self.hosts.entering(name))
            lines.append(f'{name}) exec {enter} env {settings} {sys.executable} "$@" ;;')
        lines += [f'*) exec {sys.executable} "$@" ;;', "esac", ""]
        script.write_text("\n".join(lines))
        script.chmod(0o755)
        return script

    def _zookeeper(self) -> list[str]:
        place = self.folder / "zookeeper"
        place.mkdir()
        settings = {
            "dataDir": place,
            "clientPort": self.hosts.port("zookeeper", 2181),
            "clientPortAddress": self.hosts.address("zookeeper"),
        }
        settings |= {
            "tickTime": 100,
            "minSessionTimeout": 200,
            "maxSessionTimeout": 600_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
        }
        (place / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java"
        jars = _spark_home() / "jars"
        return [java, "-Xmx128m", "-cp", f"{jars}/*", "org.apache.zookeeper.server.ZooKeeperServerMain", str(place / "zoo.cfg")]

    def _mount(self, name: str, megabytes: int, wanted: bool) -> None:
        """A disk of its own that can be filled, where this machine allows it; else a folder."""
        place = self.folder / name
        place.mkdir()
        if wanted and os.geteuid() == 0:
            self._ledger.note("mount", str(place))
            mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "meander-nemesis", str(place)]
            if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
                self.disks[name] = place

    def _wait(self, host: str, usual: int, address: str | None = None, patience: float = 60.0) -> None:
        place = (address or self.hosts.address(host), self.hosts.port(host, usual))
        deadline = time.monotonic() + patience
        while not self.hosts.within(host, lambda: _listens(place)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing listens at {place} on {host}; see {self.folder}/logs")
            time.sleep(0.1)


def find_s3_server() -> str:
    built = ROOT / ".servers" / "versitygw"
    found = str(built) if built.exists() else shutil.which("versitygw")
    if found is None:
        raise FileNotFoundError("there is no S3 server: run `make test-servers`")
    return found


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _listens(place: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(place, timeout=1.0):
            return True
    except OSError:
        return False
