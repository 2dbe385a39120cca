"""The images as their Dockerfiles say: pinned, without root, and with what the chart and KubeRay count on.

No image is built here; docs/kubernetes-images.md says how that is tried.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.gpu_proof.options import parse
from benchmarks.gpu_proof.proof import SMOKE, STAGES
from tests.kubernetes.chart import LAPTOP, ray_service
from tests.kubernetes.tools import CHART, PROJECT
from tools.supply_chain.dockerfile import Dockerfile, ignored, read_ignore_file

FILES = {
    path.name.removesuffix(".Dockerfile"): path for path in (PROJECT / "k8s/images").glob("*.Dockerfile")
}
IGNORE = read_ignore_file(PROJECT / ".dockerignore")


@pytest.fixture(params=sorted(FILES))
def image(request: pytest.FixtureRequest) -> Dockerfile:
    return Dockerfile.read(FILES[request.param].read_text())


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    """A pod of the laptop's chart, whose container is the image's."""
    template = ray_service(LAPTOP)["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]
    spec: dict[str, Any] = template["spec"]
    return spec


def test_there_is_one_for_cpus_and_one_for_gpus() -> None:
    assert sorted(FILES) == ["cpu", "gpu"]


def test_every_base_is_a_tagged_argument_or_an_earlier_stage(image: Dockerfile) -> None:
    for number, stage in enumerate(image.stages):
        if stage.base in [earlier.name for earlier in image.stages[:number]]:
            continue
        assert stage.base.startswith("${"), f"{stage.base} cannot be replaced when building"
        repository, _, tag = image.resolved(stage.base).rpartition(":")
        assert "/" in repository
        assert tag not in ("", "latest")


@pytest.mark.parametrize("name", sorted(FILES))
def test_packages_come_from_its_lock_file_only(name: str) -> None:
    image = Dockerfile.read(FILES[name].read_text())
    locks: list[str] = []
    for command in [each for stage in image.stages for each in stage.commands]:
        if "install" not in command or not command[0].endswith("/pip"):
            continue
        words = command[command.index("install") + 1 :]
        values = {words[at + 1] for at, word in enumerate(words) if word in ("--requirement", "--prefix")}
        assert {word for word in words if not word.startswith("--")} - values <= {"."}
        found = [words[at + 1] for at, word in enumerate(words) if word == "--requirement"]
        locks += found
        assert "--no-deps" in words
        assert ("--require-hashes" in words) == bool(found)
    assert locks == ["requirements/pip.txt", f"requirements/{name}.txt", "requirements/lab.txt"]


def test_what_is_copied_is_there_and_in_the_context(image: Dockerfile) -> None:
    copied = [copy for stage in image.stages for copy in stage.all("COPY")]
    local = [source for copy in copied if "from" not in copy.flags for source in copy.paths[:-1]]
    assert {"serve_app", "requirements", "pyproject.toml", "config"} <= set(local)
    for source in local:
        assert (PROJECT / source).exists()
        assert not ignored(source, IGNORE)
    names = {stage.name for stage in image.stages if stage.name}
    assert {copy.flags["from"] for copy in copied if "from" in copy.flags} <= names


def test_the_package_is_built_of_what_is_copied(image: Dockerfile) -> None:
    """pyproject.toml names files that the build reads."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    sources = {source for stage in image.stages for copy in stage.all("COPY") for source in copy.paths[:-1]}
    assert project["readme"] in sources


def test_without_a_target_the_serving_image_is_built_and_has_no_laboratory(image: Dockerfile) -> None:
    assert image.default == image.stage("serving")
    sources = {copy.flags["from"] for copy in image.default.all("COPY")}
    assert sources == {"dependencies", "application"}


def test_the_proof_is_the_serving_image_and_the_laboratory(image: Dockerfile) -> None:
    proof = image.stage("proof")
    assert proof.base == "serving"
    [copy] = proof.all("COPY")
    assert (copy.flags["from"], copy.paths) == ("laboratory", ["/opt/laboratory", "/opt/tideserve"])
    assert proof.all("USER") == proof.all("RUN") == []
    words = yaml.safe_load(proof.all("CMD")[-1].text)
    assert words[:3] == ["python", "-m", "benchmarks.gpu_proof"]
    stages = tuple(stage.name for stage in STAGES)
    assert parse(words[3:], stages, SMOKE).stages == SMOKE


def laid_out(image: Dockerfile, root: Path) -> Path:
    """The packages of the proof's image in a folder like its own, which nobody may write; returns it."""
    laboratory = image.stage("laboratory")
    [place] = laboratory.all("WORKDIR")
    site = root / Path(place.text).relative_to("/opt/laboratory")
    sources = [copy.paths for copy in laboratory.all("COPY")]
    assert [[source, source] for source, _ in sources] == sources
    for name in ("serve_app", *(source for source, _ in sources)):  # serve_app is installed beside them
        for path in (PROJECT / name).rglob("*"):
            inner = str(path.relative_to(PROJECT))
            if path.is_file() and not ignored(inner, IGNORE):
                (site / inner).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, site / inner)
    for path in [site, *site.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    return site


def run_in(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the packages in `site` first, and without GPUs."""
    found = {"PYTHONPATH": str(site), "PATH": "", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=site.parent, env={**os.environ, **found}, check=False,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def test_the_proof_begins_in_its_image_and_refuses_a_node_without_a_gpu(
    image: Dockerfile, tmp_path: Path
) -> None:
    site = laid_out(image, tmp_path / "opt")
    done = run_in(site, "-m", "benchmarks.gpu_proof", "--stages", "smoke", "--out", str(tmp_path / "results"))
    assert done.returncode == 2, done.stderr
    assert "gpu-proof: nvidia-smi is not found" in done.stderr


_IMPORTS = """
import benchmarks.gpu_proof.__main__, json, sys
files = {name: getattr(found, "__file__", None) for name, found in sys.modules.items()}
print(json.dumps({name: file for name, file in files.items() if file}))
"""


def test_all_that_the_proof_imports_is_in_its_image(tmp_path: Path) -> None:
    site = laid_out(Dockerfile.read(FILES["gpu"].read_text()), tmp_path / "opt")
    done = run_in(site, "-c", _IMPORTS)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout.splitlines()[-1])
    ours = ("serve_app", "replay", "loadtests", "traces", "benchmarks")
    assert [
        path for name, path in files.items() if name.split(".")[0] in ours and str(site) not in path
    ] == []
    makers = importlib.metadata.packages_distributions()
    wanted = {
        frozenset(made.lower().replace("_", "-").replace(".", "-") for made in makers[top])
        for name, path in files.items()
        if (top := name.split(".")[0]) not in ours and "site-packages" in path and top in makers
    }
    for image in FILES:
        texts = [(PROJECT / f"requirements/{lock}.txt").read_text() for lock in (image, "lab")]
        locked = set(re.findall(r"(?m)^([a-z0-9-]+)==", "\n".join(texts)))
        # tqdm imports colorama where it is installed.
        assert [sorted(made) for made in wanted if not made & {*locked, "tideserve", "colorama"}] == []


def test_nothing_else_is_in_the_context() -> None:
    for path in (
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "benchmarks/results/x.json",
        "docs/api.md",
        "requirements/dev.txt",
        "requirements/licenses.csv",
    ):
        assert ignored(path, IGNORE), path
    for path in (
        "serve_app/app.py",
        "requirements/pip.txt",
        "requirements/cpu.txt",
        "requirements/gpu.txt",
        "requirements/lab.txt",
        "benchmarks/gpu_proof/proof.py",
        "requirements/wheels/torch.whl",
        "config/serve.yaml",
    ):
        assert not ignored(path, IGNORE), path
    assert ignored("serve_app/cli/__pycache__/main.cpython-311.pyc", IGNORE)


def test_every_file_of_the_package_is_in_the_context() -> None:
    files = [path for folder in ("serve_app", "config") for path in (PROJECT / folder).rglob("*")]
    paths = [str(path.relative_to(PROJECT)) for path in files if "__pycache__" not in path.parts]
    assert len(paths) > 100
    assert [path for path in paths if ignored(path, IGNORE)] == []


def test_nothing_is_fetched_but_by_package_managers(image: Dockerfile) -> None:
    for stage in image.stages:
        assert stage.all("ADD") == []
        assert {command[0] for command in stage.commands} & {"curl", "wget", "git"} == set()


def test_it_runs_as_the_user_and_with_the_home_of_the_chart(image: Dockerfile, pod: dict[str, Any]) -> None:
    final = image.default
    user, group = final.all("USER")[-1].text.split(":")
    assert (int(user), int(group)) == (
        pod["securityContext"]["runAsUser"],
        pod["securityContext"]["runAsGroup"],
    )
    assert int(user) > 0
    made = next(command for command in final.commands if command[0] == "useradd")
    assert made[made.index("--uid") + 1] == user
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert final.environment["HOME"] == mounts["home"] == f"/home/{made[-1]}"


def test_it_has_what_kuberays_probes_run(image: Dockerfile) -> None:
    """They exec `bash -c` with `wget`, and a pod without is restarted for ever."""
    assert {"bash", "wget"} <= image.default.installed


def test_debian_packages_leave_nothing_behind(image: Dockerfile) -> None:
    for run in [run for stage in image.stages for run in stage.all("RUN")]:
        installs = [command for command in run.commands if command[:2] == ["apt-get", "install"]]
        if installs:
            assert ["apt-get", "update"] in run.commands
            assert ["rm", "-rf", "/var/lib/apt/lists/*"] in run.commands
            assert all("--no-install-recommends" in install for install in installs)


def test_kernels_can_be_compiled_at_run_time(image: Dockerfile) -> None:
    """triton and torch.compile want a C++ compiler and Python.h."""
    assert {"g++", "python3-dev"} <= image.default.installed


def test_commands_are_found_in_a_login_shell_too(image: Dockerfile) -> None:
    """Debian's /etc/profile sets PATH anew."""
    final = image.default
    prefix = [copy.paths[-1] for copy in final.all("COPY")]
    assert set(prefix) == {"/opt/tideserve"}
    assert final.environment["PATH"].split(":")[0] == f"{prefix[0]}/bin"
    echoed = [command for command in final.commands if command[0] == "echo"]
    assert echoed == [["echo", f"PATH={prefix[0]}/bin:$PATH"]]


def test_the_version_is_the_projects_and_the_charts(image: Dockerfile) -> None:
    final = image.default
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert final.arguments["VERSION"] == version
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version
    labels = {name: value for label in final.all("LABEL") for name, value in label.pairs.items()}
    assert labels["org.opencontainers.image.version"] == "${VERSION}"
    assert labels["org.opencontainers.image.base.name"] == "${BASE_IMAGE}"
    assert "BASE_IMAGE" in final.arguments


def test_it_serves_a_configuration_that_is_in_it(image: Dockerfile) -> None:
    final = image.default
    words = yaml.safe_load(final.all("CMD")[-1].text)
    assert words[:4] == ["tideserve", "run", "--host", "0.0.0.0"]  # 127.0.0.1 would be the container's own
    assert (PROJECT / words[4]).is_file()
    assert final.all("WORKDIR")[-1].text == Path(final.environment["PATH"].split(":")[0]).parent.as_posix()


@pytest.mark.parametrize(
    ("path", "patterns", "out"),
    [
        ("a/b", ["*"], True),
        ("a/b", ["*", "!a"], False),
        ("a/b", ["*", "!a", "a/b"], True),
        ("a/x/c.pyc", ["*", "!a", "**/*.pyc"], True),
        ("a/b", ["b"], False),
    ],
)
def test_the_last_pattern_that_matches_decides(path: str, patterns: list[str], out: bool) -> None:
    assert ignored(path, patterns) is out
