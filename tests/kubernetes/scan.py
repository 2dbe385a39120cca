"""checkov's scan of rendered manifests and Dockerfiles, all in one process of its own environment."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.tools import PROJECT

PYTHON = PROJECT / ".venv/checkov/bin/python"
RUNNER = Path(__file__).with_name("run_checkov.py")

needs_checkov = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv/checkov: make .venv/checkov.done")


@dataclass(frozen=True, slots=True, order=True)
class Failed:
    """One check that one resource of one file fails."""

    check: str
    """checkov's id, such as `CKV_K8S_20`."""
    file: str
    """The name it was given."""
    resource: str
    """Such as `Pod.default.tideserve-head`."""
    name: str
    """What the check asks for."""


def scan(manifests: Mapping[str, str], dockerfiles: Mapping[str, str]) -> list[Failed]:
    """What fails in YAML streams of manifests and in the texts of Dockerfiles, both by name.

    checkov knows no Ray resources: their pod templates are scanned as Pods. Raises `CalledProcessError` where
    it cannot run at all; a file that it cannot read is among what fails.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, text in manifests.items():
            documents = [document for document in yaml.safe_load_all(text) if document]
            unwrapped = [pod for document in documents for pod in with_pods(document)]
            (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(unwrapped))
        for name, text in dockerfiles.items():
            (folder / f"{name}.Dockerfile").write_text(text)
        done = subprocess.run(
            [PYTHON, RUNNER, folder], capture_output=True, text=True, check=True, timeout=120
        )
    return sorted(
        Failed(one["check"], Path(one["file"]).stem, one["resource"], one["name"])
        for one in json.loads(done.stdout)
    )


def with_pods(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document itself, or for a Ray resource the Pods that the operator would make of it."""
    if document["kind"] == "RayService":
        cluster = document["spec"]["rayClusterConfig"]
    elif document["kind"] == "RayCluster":
        cluster = document["spec"]
    else:
        yield document
        return
    groups = [("head", cluster["headGroupSpec"])]
    groups += [(group["groupName"], group) for group in cluster.get("workerGroupSpecs", [])]
    for name, group in groups:
        template = group["template"]
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **template.get("metadata", {}),
                "name": f"{document['metadata']['name']}-{name}",
                **({"namespace": space} if (space := document["metadata"].get("namespace")) else {}),
            },
            "spec": template["spec"],
        }
