"""`k8s/`: the chart rendered for people without Helm, one file for each kind of object."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "helm/tideserve"
FOLDER = CHART.parents[1] / "k8s"
NAMESPACE = "tideserve"
_HELM = Path(sys.executable).parent / "helm"
_HELMS_OWN = ("helm.sh/chart", "app.kubernetes.io/managed-by")
_HEADER = "# Written by `make chart` from helm/tideserve with the values in k8s/values.yaml. Change those.\n"


def manifests() -> dict[Path, str]:
    """The text of every file of `k8s/` that is generated, by its path.

    Raises RuntimeError with the error of helm, if it does not render.
    """
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for document in yaml.safe_load_all(_rendered()):
        if document:
            by_kind.setdefault(document["kind"].lower(), []).append(_without_helm(document))
    texts = {
        FOLDER / f"{kind}.yaml": _HEADER + "---\n".join(_text(document) for document in documents)
        for kind, documents in sorted(by_kind.items())
    }
    return {**texts, FOLDER / "kustomization.yaml": _kustomization([path.name for path in texts])}


def _rendered() -> str:
    values = str(FOLDER / "values.yaml")
    command = [str(_HELM), "template", "tideserve", str(CHART), "--namespace", NAMESPACE, "--no-hooks"]
    done = subprocess.run([*command, "--values", values], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"helm does not render {values}: {done.stderr.strip()}")
    return done.stdout


def _without_helm(document: dict[str, Any]) -> dict[str, Any]:
    metadata = document["metadata"]
    labels = {name: value for name, value in metadata.get("labels", {}).items() if name not in _HELMS_OWN}
    return {**document, "metadata": {**metadata, "labels": labels}}


def _kustomization(files: list[str]) -> str:
    document: Mapping[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "resources": files,
        "configurations": ["kustomizeconfig.yaml"],
        "images": [{"name": "registry.example/tideserve", "newName": "registry.example/tideserve"}],
    }
    note = "# Set newName, and newTag or digest, to your image: `kustomize edit set image` does it too.\n"
    return _HEADER + note + _text(document)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        """Repeat an object that occurs twice."""
        return True


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def _text(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110)
