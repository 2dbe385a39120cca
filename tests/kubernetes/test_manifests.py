"""`k8s/`: the chart for people without Helm."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.kubernetes import crd, kubernetes_api
from tests.kubernetes.tools import needs_crds
from tools.chart.__main__ import stale
from tools.chart.manifests import FOLDER, NAMESPACE, manifests

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")


@pytest.fixture(scope="module")
def rendered() -> dict[Path, str]:
    return manifests()


def test_the_manifests_are_up_to_date(rendered: dict[Path, str]) -> None:
    for path, text in rendered.items():
        assert path.read_text() == text, f"{path} is out of step: run `make chart`"
    assert stale(rendered) == []


def test_nothing_in_them_speaks_of_helm(rendered: dict[Path, str]) -> None:
    for path, text in rendered.items():
        for document in yaml.safe_load_all(text):
            assert "Helm" not in str(document), path.name
            assert "hook" not in str(document.get("metadata", {}).get("annotations", "")), path.name


def test_the_kustomization_lists_them_all(rendered: dict[Path, str]) -> None:
    listed = set(yaml.safe_load(rendered[FOLDER / "kustomization.yaml"])["resources"])
    assert listed | {"kustomization.yaml"} == {path.name for path in rendered}


@needs_kubectl
@needs_crds
def test_kustomize_sets_image_and_namespace(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "k8s", ignore=shutil.ignore_patterns("images"))
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    kustomization["namespace"] = "mine"
    kustomization["images"][0] |= {"newName": "registry.local/mine", "newTag": "v2"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    done = subprocess.run(["kubectl", "kustomize", folder], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "registry.example" not in done.stdout
    assert f"namespace: {NAMESPACE}" not in done.stdout
    for document in yaml.safe_load_all(done.stdout):
        if document["kind"] == "RayService":
            assert crd.problems(document) == []
            groups = document["spec"]["rayClusterConfig"]["workerGroupSpecs"]
            assert {group["template"]["spec"]["containers"][0]["image"] for group in groups} == {
                "registry.local/mine:v2"
            }
        else:
            assert kubernetes_api.problems(document, "1.36") == []


@needs_kubectl
def test_kustomize_renames_what_a_ray_service_names(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "k8s", ignore=shutil.ignore_patterns("images"))
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    kustomization |= {"namePrefix": "a-", "nameSuffix": "-z"}
    names = ("hugging-face-token", "tideserve-api-keys")
    kustomization["secretGenerator"] = [{"name": name, "literals": ["token=hf_x"]} for name in names]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    done = subprocess.run(["kubectl", "kustomize", folder], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    made: dict[str, set[str]] = {}
    for document in documents:
        made.setdefault(document["kind"], set()).add(document["metadata"]["name"])
    [service] = (document for document in documents if document["kind"] == "RayService")
    named: dict[str, set[str]] = {"ServiceAccount": set(), "PersistentVolumeClaim": set(), "Secret": set()}
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        named["ServiceAccount"].add(pod["serviceAccountName"])
        for volume in pod["volumes"]:
            named["Secret"] |= {volume["secret"]["secretName"]} if "secret" in volume else set()
            claim = volume.get("persistentVolumeClaim")
            named["PersistentVolumeClaim"] |= {claim["claimName"]} if claim else set()
        for variable in (one for container in pod["containers"] for one in container["env"]):
            key = variable.get("valueFrom", {}).get("secretKeyRef")
            named["Secret"] |= {key["name"]} if key else set()
    assert named == {kind: made[kind] for kind in named}
    assert all(name.startswith("a-") for names in named.values() for name in names)
