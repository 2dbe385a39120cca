"""The chart rendered with the values of a file, once for all tests that look at it."""

import pickle
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.tools import CHART, helm

EXAMPLES = sorted(CHART.glob("examples/*.yaml"))
CI_VALUES = sorted(CHART.glob("ci/*-values.yaml"))
ALL_VALUES = [*EXAMPLES, *CI_VALUES]
LAPTOP = CHART / "ci/laptop-values.yaml"
A100 = CHART / "examples/zero-to-n.yaml"

KINDS = ("PodMonitor", "PrometheusRule")
API_VERSIONS = [word for kind in KINDS for word in ("--api-versions", f"monitoring.coreos.com/v1/{kind}")]
"""Options for a cluster with the Prometheus operator."""
Document = dict[str, Any]


@cache
def rendered(values: Path, *sets: str, release: str = "demo", kube_version: str = "1.36.0") -> str:
    """What `helm template` prints; `sets` are arguments of `--set-json`."""
    arguments = ["template", release, str(CHART), "--namespace", "llm", "--values", str(values)]
    arguments += ["--kube-version", kube_version, *API_VERSIONS]
    for setting in sets:
        arguments += ["--set-json", setting]
    done = helm(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(values: Path, *sets: str, **more: str) -> list[Document]:
    """Its objects, for the caller to change at will."""
    found: list[Document] = pickle.loads(_parsed(values, *sets, **more))
    return found


@cache
def _parsed(values: Path, *sets: str, **more: str) -> bytes:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return pickle.dumps([found for found in yaml.load_all(rendered(values, *sets, **more), loader) if found])


def of_kind(kind: str, values: Path, *sets: str, **more: str) -> list[Document]:
    """Those of one kind."""
    return [found for found in documents(values, *sets, **more) if found["kind"] == kind]


def ray_service(values: Path, *sets: str, **more: str) -> Document:
    """The one RayService."""
    [found] = of_kind("RayService", values, *sets, **more)
    return found


def serve_config(values: Path, *sets: str, **more: str) -> Document:
    """The Serve configuration in it."""
    config: Document = yaml.safe_load(ray_service(values, *sets, **more)["spec"]["serveConfigV2"])
    return config


def refusal(values: Path, *sets: str, release: str = "demo", kube_version: str = "1.36.0") -> str:
    """What `helm template` says of values it refuses."""
    arguments = ["template", release, str(CHART), "--values", str(values), "--kube-version", kube_version]
    for setting in sets:
        arguments += ["--set-json", setting]
    done = helm(*arguments)
    assert done.returncode != 0, "rendered, although it should have been refused"
    return done.stderr
