"""Models are downloaded before replicas need them, here from a hub in this process."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import close_session, constants
from huggingface_hub.utils import _http

from serve_app.weights import download
from tests.weights.fake_hub import COMMIT, FakeHub

Load = Callable[..., int]
INDEX = "model.safetensors.index.json"
WHOLE = {
    "config.json": b"{}",
    "model-1.safetensors": b"1" * 100,
    "model-2.safetensors": b"2" * 100,
    INDEX: (b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'),
    "pytorch_model.bin": b"3" * 200,
    "tokenizer.json": b"{}",
}


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    close_session()
    yield
    close_session()


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Runs the command against a hub, and returns its exit status."""

    def run(fake: FakeHub, *arguments: str, cache: Path = tmp_path, free: int = 1 << 40) -> int:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(download.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        with fake.serving() as address:
            monkeypatch.setattr(constants, "ENDPOINT", address)
            template = address + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            return download.main(arguments)

    return run


def _found(cache: Path, repository: str) -> set[str]:
    folder = cache / f"models--{repository.replace('/', '--')}" / "snapshots" / COMMIT
    return {path.name for path in folder.iterdir()}


def test_exactly_the_files_that_an_engine_needs_are_downloaded(tmp_path: Path, load: Load) -> None:
    assert load(FakeHub({"org/model": WHOLE}), "org/model") == 0
    assert _found(tmp_path, "org/model") == set(WHOLE) - {"pytorch_model.bin"}
    assert (tmp_path / "models--org--model/refs/main").read_text() == COMMIT


def test_a_second_run_downloads_nothing(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeHub({"org/model": WHOLE})
    load(fake, "org/model")
    fake.sent.clear()
    assert load(fake, "org/model@main") == 0
    assert fake.sent == []
    assert "org/model: downloading 0.00 GB of 0.00 GB" in capsys.readouterr().out


def test_a_damaged_index_has_exit_status_1(load: Load) -> None:
    files = {**WHOLE, INDEX: b"<html>a proxy's page</html>"}

    assert load(FakeHub({"org/model": files}), "org/model") == 1


def test_a_tokenizer_comes_without_weights(tmp_path: Path, load: Load) -> None:
    assert load(FakeHub({"org/model": WHOLE}), "--tokenizer=org/model") == 0
    assert _found(tmp_path, "org/model") == {
        "config.json", INDEX, "tokenizer.json",
    }  # fmt: skip


def test_a_gated_model_does_not_stop_the_others(
    tmp_path: Path, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeHub({"org/gated": WHOLE, "org/open": WHOLE}, gated=frozenset({"org/gated"}))
    assert load(fake, "org/gated", "org/open") == 2
    error = capsys.readouterr().err
    assert "org/gated: GatedRepoError: " in error
    assert "Visit https://huggingface.co/org/gated to ask for access. (HF_TOKEN is not set)" in error
    assert "model-2.safetensors" in _found(tmp_path, "org/open")


NO_WEIGHTS = "NothingToLoadError: the repository has no weights that vLLM can load"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("org/none", "org/none: RepositoryNotFoundError: 404 Client Error. "),
        ("org/model@v9", "org/model@v9: RevisionNotFoundError: 404 Client Error. Revision Not Found "),
        ("org/model:Q4", "org/model:Q4: HFValidationError: Repo id must use alphanumeric chars"),
        ("org/bare", f"org/bare: {NO_WEIGHTS}"),
        ("org/index", f"org/index: {NO_WEIGHTS}"),
        ("--tokenizer=org/weights", "NothingToLoadError: the repository has no tokenizer"),
    ],
)
def test_a_permanent_failure_has_exit_status_2(
    load: Load, capsys: pytest.CaptureFixture[str], wanted: str, words: str
) -> None:
    index = {name: WHOLE[name] for name in ("config.json", INDEX, "pytorch_model.bin")}
    others = {"org/bare": {"config.json": b"{}"}, "org/index": index, "org/weights": {"weights.bin": b"1"}}
    assert load(FakeHub({"org/model": WHOLE, **others}), wanted) == 2
    assert words in capsys.readouterr().err


def test_a_failing_hub_has_exit_status_1(load: Load) -> None:
    fake = FakeHub({"org/model": WHOLE})
    fake.broken = True
    assert load(fake, "org/model") == 1


def test_a_hub_that_fails_after_its_list_is_a_failure(
    tmp_path: Path, load: Load, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client then returns the folder of what is there, which is the index of the weights."""
    # The client asks five times more, and would wait for 23 s between them.
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda _: None))
    fake = FakeHub({"org/model": WHOLE})
    fake.tells = 3  # the list of files, and for the size the revision and its files

    assert load(fake, "org/model") == 1

    assert _found(tmp_path, "org/model") == {INDEX}
    assert "org/model: OSError: 4 of 5 files were not downloaded, such as " in capsys.readouterr().err


def test_a_model_named_twice_needs_space_once(load: Load) -> None:
    assert load(FakeHub({"org/model": WHOLE}), "org/model", "org/model@main", free=300) == 0


def test_nothing_is_downloaded_without_space_for_all(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeHub({"org/model": WHOLE})
    assert load(fake, "org/model", free=100) == 2
    assert "0.00 GB to download, 0.00 GB free; nothing was downloaded" in capsys.readouterr().err
    assert "model-1.safetensors" not in fake.sent


def test_a_folder_that_cannot_be_made_is_reported(
    tmp_path: Path, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert load(FakeHub({}), "org/model", cache=tmp_path / "file" / "hub") == 2
    assert "file/hub: NotADirectoryError: " in capsys.readouterr().err


def test_leftovers_of_killed_downloads_are_removed(tmp_path: Path, load: Load) -> None:
    blobs = tmp_path / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    old, new = blobs / "a.1.incomplete", blobs / "a.2.incomplete"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    load(FakeHub({"org/model": WHOLE}), "org/model")
    assert not old.exists()
    assert new.exists()


def test_a_running_download_is_kept_by_a_node_whose_clock_is_ahead(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = tmp_path / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "a.1.incomplete").touch()
    ahead = time.time() + 86_400.0
    monkeypatch.setattr(download.time, "time", lambda: ahead)

    load(FakeHub({"org/model": WHOLE}), "org/model")

    assert [path.name for path in blobs.glob("*.incomplete")] == ["a.1.incomplete"]


def test_progress_is_logged_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = 100.0
    monkeypatch.setattr(download.time, "monotonic", lambda: clock)
    progress = download.LogProgress(name="huggingface_hub.snapshot_download", mininterval=0)
    for seconds, count in ((29.0, 1_000_000_000), (1.0, 2_000_000_000), (29.0, 1), (1.0, 9_000_000_000)):
        clock += seconds
        progress.update(count)
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["3.00 GB downloaded", "12.0 GB downloaded"]


def test_a_download_logs_its_progress(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(download, "_REPORT_S", 0.0)
    load(FakeHub({"org/model": WHOLE}), "org/model")
    assert "0.00 GB downloaded, " in capsys.readouterr().out


def test_a_command_line_without_a_model_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        download.main([])


@pytest.mark.parametrize(
    ("files", "indexed", "chosen"),
    [
        (["a1.safetensors", "adapter.safetensors", "model.bin"], ["a1.safetensors"], "a1.safetensors"),
        (["pytorch_model.bin", "model.safetensors", "model.pt"], [], "*.safetensors"),
        (["pytorch_model.bin", "tf_model.h5"], [], "*.bin"),
        (["onnx/model.safetensors", "pytorch_model.bin"], [], "*.bin"),
        (["consolidated.safetensors", "m.safetensors"], ["m.safetensors"], "consolidated*.safetensors"),
        (["original/consolidated.00.pth", "model.onnx", "config.json"], [], None),
    ],
)  # fmt: skip
def test_the_weights_that_vllm_loads_are_chosen(
    files: list[str], indexed: list[str], chosen: str | None
) -> None:
    assert download.weight_patterns(files, indexed) == ([] if chosen is None else [chosen])


def test_configurations_tokenizers_templates_and_code_are_downloaded(tmp_path: Path, load: Load) -> None:
    wanted = [
        "config.json", "tokenizer.model.v3", "merges.txt", "q.tiktoken", "chat_template.jinja", "modeling.py",
    ]  # fmt: skip
    others = ["README.md", "original/params.json", "picture.png", "model.safetensors"]
    assert load(FakeHub({"org/model": dict.fromkeys([*wanted, *others], b"x")}), "--tokenizer=org/model") == 0
    assert _found(tmp_path, "org/model") == set(wanted)
