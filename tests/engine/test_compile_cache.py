"""What one pod has compiled, the next one finds."""

import os
import tarfile
from pathlib import Path

import pytest

from serve_app.engine.compile_cache import archive_of, fetch, store

AOT = ".cache/vllm/torch_compile_cache/torch_aot_compile"


def pod(folder: Path, **files: str) -> Path:
    """The home folder of a pod that has compiled `files`, by the first part of their names."""
    for name, text in files.items():
        path = folder / AOT / name / "rank_0_0/model"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return archive_of(str(tmp_path / "shared"), "0.32.0", "org/a model")


def test_the_next_pod_begins_with_what_one_has_compiled(archive: Path, tmp_path: Path) -> None:
    first = pod(tmp_path / "first", a="kernel")
    library = first / ".triton/cache/XYZ/launcher.so"
    library.parent.mkdir(parents=True)
    library.touch(mode=0o755)
    os.utime(library, (1.0e9, 1.0e9))
    store(archive, first)
    second = pod(tmp_path / "second", b="in use")
    pod(first, b="new")
    store(archive, first)
    fetch(archive, second)
    assert archive == tmp_path / "shared/vllm-0.32.0/org-a-model.tar"
    assert (second / AOT / "a/rank_0_0/model").read_text() == "kernel"
    assert (second / AOT / "b/rank_0_0/model").read_text() == "in use"
    found = (second / ".triton/cache/XYZ/launcher.so").stat()
    assert (found.st_mtime, found.st_mode & 0o700) == (1.0e9, 0o700)  # ninja compares times
    assert sorted(path.name for path in second.iterdir()) == [".cache", ".triton"]


def test_an_archive_is_replaced_only_for_something_new(archive: Path, tmp_path: Path) -> None:
    home = pod(tmp_path / "home", a="kernel")
    store(archive, home)
    written = archive.stat().st_ino
    added = home / AOT / "a/inductor_cache/entry"
    added.parent.mkdir()
    added.touch()
    store(archive, home)
    assert archive.stat().st_ino == written
    pod(home, b="another model, or other settings")
    store(archive, home)
    assert archive.stat().st_ino != written
    with tarfile.open(archive) as tar:
        assert sorted(Path(name).parts[4] for name in tar.getnames()) == ["a", "a", "b"]
    assert list(archive.parent.iterdir()) == [archive]


@pytest.mark.parametrize(
    "name",
    [
        ".cache/vllm/gpu_p2p_access_cache_for_0,1.json",
        ".cache/vllm/startup_plan/startup_plan_1.json",
        f"{AOT}/a/rank_0_0/model.17.tmp",
        ".triton/cache/tmp.pid_17_ab/kernel.json",
        ".cache/flashinfer/0.6/90a/tmp/x.lock",
        ".cache/huggingface/token",
    ],
)
def test_what_is_the_nodes_or_unfinished_is_not_shared(name: str, archive: Path, tmp_path: Path) -> None:
    home = pod(tmp_path / "home", a="kernel")
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).touch()
    store(archive, home)
    with tarfile.open(archive) as tar:
        assert tar.getnames() == [f"{AOT}/a/rank_0_0/model"]


def test_engine_compiles_without_a_readable_archive(
    archive: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = pod(tmp_path / "home")
    fetch(archive, home)
    assert caplog.records == []
    archive.parent.mkdir(parents=True)
    archive.write_text("cut off")
    fetch(archive, home)
    assert "cannot be unpacked, so the engine compiles" in caplog.text
    assert list(home.iterdir()) == []


def test_an_archive_reaches_nothing_outside_the_home_folder(archive: Path, tmp_path: Path) -> None:
    archive.parent.mkdir(parents=True)
    (tmp_path / "evil").touch()
    with tarfile.open(archive, "w") as tar:
        tar.add(tmp_path / "evil", "../../outside")
    fetch(archive, pod(tmp_path / "home"))
    assert not (tmp_path / "outside").exists()


def test_a_volume_that_cannot_be_written_fails_no_start(
    archive: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shared").touch()
    store(archive, pod(tmp_path / "home", a="kernel"))
    assert "cannot be written, so the next engine compiles again" in caplog.text
