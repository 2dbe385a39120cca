"""The images as their Dockerfiles describe them: pinned, without root, ready for the chart and KubeRay.

No image is built here; docs/kubernetes-images.md describes how to try one.
"""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.gpu_proof.options import parse
from benchmarks.gpu_proof.proof import SMOKE, STAGES
from tests.kubernetes.chart import LAPTOP, ray_service
from tests.kubernetes.tools import CHART, PROJECT

PATTERNS = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
TEXTS = {
    path.name.removesuffix(".Dockerfile"): re.sub(r"(?m)^\s*#.*\n", "", path.read_text()).replace("\\\n", " ")
    for path in (PROJECT / "k8s/images").glob("*.Dockerfile")
}
each_image = pytest.mark.parametrize("image", ["cpu", "gpu"])


def instructions(image: str, word: str, stage: str = r".*?") -> list[str]:
    """Return the rest of the lines that begin with `word`, in one stage or in all."""
    text = TEXTS[image]
    if stage != r".*?":
        [text] = re.findall(rf"(?ms)^FROM \S+ AS {stage}\n(.*?)(?=^FROM |\Z)", text)
    return re.findall(rf"(?m)^{word} +(.*)$", text)


def copies(image: str, stage: str = r".*?") -> list[tuple[str, list[str]]]:
    """Return the stage that each COPY takes from ("" for the context), and its paths."""
    found = (shlex.split(text) for text in instructions(image, "COPY", stage))
    return [
        (words[0].removeprefix("--from="), words[1:]) if words[0].startswith("--from=") else ("", words)
        for words in found
    ]


def ignored(path: str) -> bool:
    """Whether `.dockerignore` keeps `path` out. The last pattern that matches it or its folder decides."""
    parts = Path(path).parts
    out = False
    for pattern in PATTERNS:
        glob = pattern.removeprefix("!")
        folder = "/".join(parts[: glob.count("/") + 1])
        anywhere = glob.startswith("**/") and any(fnmatchcase(part, glob[3:]) for part in parts)
        if anywhere or fnmatchcase(folder, glob):
            out = not pattern.startswith("!")
    return out


@each_image
def test_every_base_is_a_tagged_argument_or_an_earlier_stage(image: str) -> None:
    seen = {"${BASE_IMAGE}"}
    for base, _, name in (line.partition(" AS ") for line in instructions(image, "FROM")):
        assert base in seen
        seen.add(name)
    repository, _, tag = instructions(image, "ARG")[0].removeprefix("BASE_IMAGE=").rpartition(":")
    assert "/" in repository
    assert tag not in ("", "latest")


@each_image
def test_python_packages_come_from_locks_only(image: str) -> None:
    installs = re.findall(r"/pip (?:--python \S+ )?install (.+?)(?= && |\n)", TEXTS[image])
    assert all("--no-deps" in install for install in installs)
    locked = [install for install in installs if "--requirement" in install]
    assert all("--require-hashes" in install for install in locked)
    assert [re.findall(r"--requirement (\S+)", install) for install in locked] == [
        ["requirements/pip.txt"], [f"requirements/{image}.txt"],
    ]  # fmt: skip
    assert [install.split()[-1] for install in installs if install not in locked] == ["."]


@each_image
def test_copied_files_exist_and_are_in_the_context(image: str) -> None:
    local = {source for stage, paths in copies(image) if not stage for source in paths[:-1]}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert {"serve_app", "requirements", "pyproject.toml", "config", project["readme"]} <= local
    assert [source for source in local if not (PROJECT / source).exists() or ignored(source)] == []


@each_image
def test_the_serving_image_is_the_default_and_has_no_laboratory(image: str) -> None:
    assert TEXTS[image].rstrip().endswith("\nFROM serving")
    assert {stage for stage, _ in copies(image, "serving")} - {"kernels"} == {"dependencies", "application"}


@each_image
def test_the_proof_is_the_serving_image_and_the_laboratory(image: str) -> None:
    assert "FROM serving AS proof\n" in TEXTS[image]
    assert copies(image, "proof") == [("laboratory", ["/opt/laboratory", "/opt/tideserve"])]
    assert instructions(image, "(?:USER|RUN)", "proof") == []
    words = yaml.safe_load(instructions(image, "CMD", "proof")[0])
    assert words[:3] == ["python", "-m", "benchmarks.gpu_proof"]
    assert parse(words[3:], tuple(stage.name for stage in STAGES), SMOKE).stages == SMOKE


_BEGIN = """
import json, runpy, sys
sys.argv = ["gpu-proof", "--stages", "smoke", "--out", sys.argv[1]]
try:
    runpy.run_module("benchmarks.gpu_proof", run_name="__main__")
finally:
    files = {name: getattr(found, "__file__", None) for name, found in sys.modules.items()}
    print(json.dumps({name: file for name, file in files.items() if file}))
"""


@pytest.mark.long
def test_the_proof_begins_with_the_packages_of_its_image(tmp_path: Path) -> None:
    """It refuses a node without a GPU, and imports nothing that the images lack."""
    [place] = instructions("gpu", "WORKDIR", "laboratory")
    assert (instructions("cpu", "WORKDIR", "laboratory"), copies("cpu", "laboratory")) == (
        [place], copies("gpu", "laboratory"),
    )  # fmt: skip
    site = tmp_path / "opt" / Path(place).relative_to("/opt/laboratory")
    ours = ["serve_app", *(paths[0] for _, paths in copies("gpu", "laboratory"))]
    for name in ours:
        for path in (PROJECT / name).rglob("*"):
            inner = str(path.relative_to(PROJECT))
            if path.is_file() and not ignored(inner):
                (site / inner).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, site / inner)
    for path in [site, *site.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)

    found = {"PYTHONPATH": str(site), "PATH": "", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN, tmp_path / "results"], cwd=tmp_path, env={**os.environ, **found},
        check=False, capture_output=True, text=True,
    )  # fmt: skip

    assert "gpu-proof: nvidia-smi is not found" in done.stderr, done.stderr
    assert done.returncode == 2
    files: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    tops = {name: name.split(".")[0] for name in files}
    assert [files[name] for name, top in tops.items() if top in ours and str(site) not in files[name]] == []
    makers = importlib.metadata.packages_distributions()
    wanted = {
        frozenset(re.sub(r"[_.]", "-", maker.lower()) for maker in makers[top])
        for name, top in tops.items()
        if top not in ours and "site-packages" in files[name] and top in makers
    }
    for image in TEXTS:
        text = (PROJECT / f"requirements/{image}.txt").read_text()
        locked = set(re.findall(r"(?m)^([a-z0-9-]+)==", text))
        # tqdm imports colorama where it is installed.
        assert [sorted(made) for made in wanted if not made & {*locked, "tideserve", "colorama"}] == []


def test_the_context_has_only_what_images_are_made_of() -> None:
    out = (".git/config", ".venv/bin/python", "tests/conftest.py", "benchmarks/results/x.json", "docs/api.md",
           "requirements/dev.txt", "requirements/licenses.csv", "serve_app/__pycache__/app.pyc")  # fmt: skip
    assert [path for path in out if not ignored(path)] == []
    files = [path for folder in ("serve_app", "config") for path in (PROJECT / folder).rglob("*")]
    inside = [str(path.relative_to(PROJECT)) for path in files if "__pycache__" not in path.parts]
    inside += [f"requirements/{name}" for name in ("pip.txt", "cpu.txt", "gpu.txt", "wheels/a.whl")]
    assert len(inside) > 100
    assert [path for path in inside if ignored(path)] == []


@each_image
def test_only_package_managers_fetch_and_leave_nothing_behind(image: str) -> None:
    assert instructions(image, "ADD") == []
    assert re.findall(r"(?:^RUN|&&|;|\() *(?:curl|wget|git) ", TEXTS[image], re.MULTILINE) == []
    for run in instructions(image, "RUN"):
        if "apt-get install" in run:
            assert run.startswith("apt-get update")
            assert "rm -rf /var/lib/apt/lists/*" in run
            assert run.count("apt-get install --yes --no-install-recommends ") == run.count("apt-get install")


@each_image
def test_user_and_home_are_those_of_the_chart(image: str) -> None:
    template = ray_service(LAPTOP)["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]
    pod: dict[str, Any] = template["spec"]
    user, group = map(int, instructions(image, "USER", "serving")[-1].split(":"))
    assert user > 0
    assert (user, group) == (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"])
    [made] = re.findall(r"useradd (.+?) &&", TEXTS[image])
    assert f"--uid {user} --gid {group} --create-home" in made
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert f" HOME={mounts['home']} " in TEXTS[image]
    assert mounts["home"] == f"/home/{made.split()[-1]}"


@each_image
def test_commands_are_found_in_a_login_shell_too(image: str) -> None:
    """Debian's /etc/profile sets PATH anew."""
    assert {paths[-1] for _, paths in copies(image, "serving")} == {"/opt/tideserve"}
    assert instructions(image, "ENV", "serving")[0].startswith("PATH=/opt/tideserve/bin:")
    assert "echo 'PATH=/opt/tideserve/bin:$PATH' >/etc/profile.d/tideserve.sh" in TEXTS[image]
    assert instructions(image, "WORKDIR", "serving") == ["/opt/tideserve"]


@each_image
def test_the_version_is_that_of_project_and_chart(image: str) -> None:
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert f"VERSION={version}" in instructions(image, "ARG", "serving")
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version
    labels = dict(part.split("=", 1) for part in shlex.split(instructions(image, "LABEL", "serving")[0]))
    assert labels["org.opencontainers.image.version"] == "${VERSION}"
    assert labels["org.opencontainers.image.base.name"] == "${BASE_IMAGE}"


@each_image
def test_it_serves_a_configuration_that_is_in_it(image: str) -> None:
    words = yaml.safe_load(instructions(image, "CMD", "serving")[0])
    assert words[:4] == ["tideserve", "run", "--host", "0.0.0.0"]  # 127.0.0.1 would be the container's own
    assert (PROJECT / words[4]).is_file()
