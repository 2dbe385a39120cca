"""Where the tests find helm, Prometheus's tools and KubeRay's CRDs, and the marks that skip without them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "helm/tideserve"


def _tool(name: str) -> Path | None:
    """`name` as `requirements/tools.sh` unpacked it, or else from PATH."""
    unpacked = PROJECT / ".venv/tools/usr/bin" / name
    if unpacked.exists():
        return unpacked
    found = shutil.which(name)
    return Path(found) if found else None


HELM = Path(sys.executable).parent / "helm"
PROMTOOL = _tool("promtool")
PROMETHEUS = _tool("prometheus")
AMTOOL = _tool("amtool")
CRDS = Path(os.environ.get("KUBERAY_CRDS") or PROJECT.parent / "shared/kuberay-1.7.0")


def _needs(name: str, path: Path | None, package: str) -> pytest.MarkDecorator:
    how = f"run requirements/tools.sh, or install Debian's package {package}"
    return pytest.mark.skipif(path is None, reason=f"no {name}: {how}")


needs_promtool = _needs("promtool", PROMTOOL, "prometheus")
needs_prometheus = _needs("prometheus", PROMETHEUS, "prometheus")
needs_amtool = _needs("amtool", AMTOOL, "prometheus-alertmanager")
needs_crds = pytest.mark.skipif(
    not (CRDS / "ray.io_rayservices.yaml").exists(),
    reason=f"no KubeRay CRDs in {CRDS}: set KUBERAY_CRDS to the folder helm-chart/kuberay-operator/crds "
    "of a KubeRay 1.7.0 source tree",
)


def helm(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """`helm` with `args`, its output captured; a failure is for the caller to look at.

    It reads nothing of the user's own: no cluster, no repositories, no cache.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECONFIG"):
        env[name] = "/nonexistent"
    env["GOGC"] = "off"  # collecting garbage takes a fifth of the CPU time of so short a process
    return subprocess.run(
        [HELM, *args], check=False, input=stdin, env=env, capture_output=True, text=True, timeout=180
    )
