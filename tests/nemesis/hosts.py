"""The machines that the nemesis pretends to have: a network namespace each, joined by a bridge in a namespace of its own.

Nothing is added to the machine's own network: no address, no interface, no route. ``Loopback`` is what remains where namespaces are not
allowed: all hosts are one, and links cannot be cut.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tests.nemesis.ledger import Ledger

NAMES = ("master", "worker1", "worker2", "a", "b", "supervisor", "s3", "zookeeper")
_SUBNET = "10.213.77"
_CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")


class Hosts(Protocol):
    """Where processes run, and what can be done to the links between them."""

    links: bool
    """Whether links can be cut and slowed down."""

    def address(self, host: str) -> str: ...

    def port(self, host: str, usual: int) -> int:
        """A free port there: always the same for the same usual one."""

    def entering(self, host: str) -> list[str]:
        """What a command line must begin with to run on a host."""

    def within(self, host: str, call: Callable[[], Result]) -> Result:
        """Call a function in a thread that is on a host."""


class Namespaces:
    """A namespace per host. Faults are rules of its own packet filter, and a queue at its end of the wire."""

    links = True

    def __init__(self, ledger: Ledger, identity: str) -> None:
        self._names = {name: f"nm{identity}-{name}" for name in NAMES}
        self._addresses = {name: f"{_SUBNET}.{number}" for number, name in enumerate(NAMES, 11)}
        hub = f"nm{identity}-hub"
        for name in (hub, *self._names.values()):
            ledger.note("namespace", name)
            _run("ip", "netns", "add", name)
        _run("ip", "-n", hub, "link", "add", "hub", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "hub", "up")
        for number, (host, name) in enumerate(self._names.items()):
            _run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{number}", "netns", hub)
            _run("ip", "-n", hub, "link", "set", f"port{number}", "master", "hub", "up")
            _run("ip", "-n", name, "address", "add", f"{self._addresses[host]}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "eth0", "up")

    @staticmethod
    def unavailable() -> str | None:
        """Why namespaces cannot be had here; None where they can."""
        if os.geteuid() != 0:
            return "not root"
        for tool in ("ip", "iptables", "nsenter", "tc"):
            if shutil.which(tool) is None:
                return f"there is no {tool}"
        name = f"nm-probe-{os.getpid()}"
        try:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
            _run("ip", "-n", name, "link", "add", "probe2", "type", "bridge")
            _run("nsenter", f"--net=/run/netns/{name}", "iptables", "-A", "INPUT", "-s", f"{_SUBNET}.250", "-j", "DROP")
        except OSError as error:
            return str(error)
        finally:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        return None

    def address(self, host: str) -> str:
        return self._addresses[host]

    def port(self, host: str, usual: int) -> int:
        return usual

    def entering(self, host: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._names[host]}"]

    def within(self, host: str, call: Callable[[], Result]) -> Result:
        """A thread's network namespace is its own: this process stays where it is."""
        found: list[Any] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                _enter(f"/run/netns/{self._names[host]}")
                found.append(call())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, name=f"nemesis-within-{host}")
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        result: Result = found[0]
        return result

    # -- faults of links --------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Packets from one host do not reach the other; the way back stays as it is."""
        self._filter(target, "-A", "INPUT", "-s", self._addresses[source], "-j", "DROP")

    def lose(self, source: str, target: str, share: float) -> None:
        """A share of the packets from one host to another is lost."""
        rule = ("-m", "statistic", "--mode", "random", "--probability", f"{share:.3f}", "-j", "DROP")
        self._filter(target, "-A", "INPUT", "-s", self._addresses[source], *rule)

    def slow(self, host: str, kilobits: int) -> None:
        """What a host sends goes through a narrow pipe: it waits in a queue."""
        self._shape(host, "replace", "root", "tbf", "rate", f"{kilobits}kbit", "burst", "16kb", "latency", "2s")

    def restore(self, source: str, target: str) -> None:
        """Packets from one host to the other pass again: all rules about them go."""
        rules = subprocess.run([*self.entering(target), "iptables", "-w", "-S", "INPUT"], capture_output=True, text=True, check=True).stdout
        for rule in rules.splitlines():
            if rule.startswith("-A") and f"-s {self._addresses[source]}/32" in rule:
                self._filter(target, "-D", *rule.split()[1:])

    def quicken(self, host: str) -> None:
        subprocess.run(["tc", "-n", self._names[host], "qdisc", "del", "dev", "eth0", "root"], capture_output=True, check=False)

    def heal(self) -> None:
        """All links are as they were."""
        for host in NAMES:
            self._filter(host, "-F")
            self.quicken(host)

    def _filter(self, host: str, *rule: str) -> None:
        _run(*self.entering(host), "iptables", "-w", *rule)

    def _shape(self, host: str, verb: str, *words: str) -> None:
        _run("tc", "-n", self._names[host], "qdisc", verb, "dev", "eth0", *words)


class Loopback:
    """All hosts are this machine's loopback."""

    links = False

    def __init__(self) -> None:
        self._ports: dict[tuple[str, int], int] = {}

    def address(self, host: str) -> str:
        return "127.0.0.1"

    def port(self, host: str, usual: int) -> int:
        if (host, usual) not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports[host, usual] = int(free.getsockname()[1])
        return self._ports[host, usual]

    def entering(self, host: str) -> list[str]:
        return []

    def within(self, host: str, call: Callable[[], Result]) -> Result:
        return call()


def _enter(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(handle)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
