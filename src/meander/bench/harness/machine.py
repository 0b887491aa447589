"""Facts about the machine: without them no two measurements can be compared."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from meander import __version__
from meander.bench.harness.statistics import Json

_PACKAGES = ("pyspark", "polars", "pyarrow", "numpy")


def machine_facts() -> Json:
    """Cores, memory, versions, and how busy the machine was before anything was started."""
    versions = {"meander": __version__, "python": platform.python_version(), "java": _java_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _field("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.processor() or platform.machine(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "versions": versions,
        "load_before": round(os.getloadavg()[0], 2),
    }


def _java_version() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    with contextlib.suppress(OSError):
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
        found = re.search(r'version "([^"]+)"', answer)
        return found.group(1) if found else None
    return None


def _field(path: str, pattern: str) -> str | None:
    with contextlib.suppress(OSError):
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
        return found.group(1) if found else None
    return None
