"""Loading models before replicas need them, from a hub in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import close_session

from serve_app.weights.download import Hub, Wanted, gigabytes, load_all, main, report
from tests.weights.fake_hub import COMMIT, FakeHub

PLENTY = 1 << 40
WHOLE = {
    "config.json": b"{}",
    "model-1.safetensors": b"1" * 100,
    "model-2.safetensors": b"2" * 100,
    "model.safetensors.index.json": (
        b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    ),
    "pytorch_model.bin": b"3" * 200,
    "tokenizer.json": b"{}",
}


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    close_session()
    yield
    close_session()


def _load(fake: FakeHub, cache: Path, *wanted: Wanted, free: int = PLENTY) -> int:
    with fake.serving() as address:
        return load_all(Hub(address, cache), wanted, lambda _: free)


def _found(cache: Path, repository: str) -> set[str]:
    folder = cache / f"models--{repository.replace('/', '--')}" / "snapshots" / COMMIT
    return {path.name for path in folder.iterdir()}


def test_what_an_engine_needs_is_there_afterwards_and_nothing_else(tmp_path: Path) -> None:
    fake = FakeHub({"org/model": WHOLE})
    assert _load(fake, tmp_path, Wanted("org/model")) == 0
    assert _found(tmp_path, "org/model") == set(WHOLE) - {"pytorch_model.bin"}
    assert (tmp_path / "models--org--model/refs/main").read_text() == COMMIT


def test_a_second_run_loads_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeHub({"org/model": WHOLE})
    _load(fake, tmp_path, Wanted("org/model"))
    fake.sent.clear()
    assert _load(fake, tmp_path, Wanted("org/model")) == 0
    assert fake.sent == []
    assert "org/model: 0.00 GB, all here" in capsys.readouterr().out


def test_of_a_tokenizer_no_weights_are_loaded(tmp_path: Path) -> None:
    fake = FakeHub({"org/model": WHOLE})
    assert _load(fake, tmp_path, Wanted.parse("org/model", tokenizer_only=True)) == 0
    assert not any(name.endswith(("safetensors", "bin")) for name in _found(tmp_path, "org/model"))


def test_a_gated_model_says_what_to_do_and_is_not_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeHub({"org/gated": WHOLE, "org/open": WHOLE}, gated=frozenset({"org/gated"}))
    assert _load(fake, tmp_path, Wanted("org/gated"), Wanted("org/open")) == 2
    assert "org/gated: is gated: accept its terms" in capsys.readouterr().err
    assert "model-2.safetensors" in _found(tmp_path, "org/open")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("org/none", "org/none: is not at "),
        ("org/model@v9", "org/model@v9: has no such revision"),
        ("org/model:Q4", "org/model:Q4: is no name of a repository"),
        ("org/bare", "org/bare: has no weights that vLLM could load"),
    ],
)
def test_what_no_retry_mends_has_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: str, words: str
) -> None:
    fake = FakeHub({"org/model": WHOLE, "org/bare": {"config.json": b"{}"}})
    assert _load(fake, tmp_path, Wanted.parse(wanted)) == 2
    assert words in capsys.readouterr().err


def test_a_hub_that_fails_is_worth_another_try(tmp_path: Path) -> None:
    fake = FakeHub({"org/model": WHOLE})
    fake.broken = True
    assert _load(fake, tmp_path, Wanted("org/model")) == 1


def test_a_hub_that_fails_after_its_list_does_not_pass_for_a_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its client then returns the folder of what is there, which is the index of the weights."""
    fake = FakeHub({"org/model": WHOLE})
    fake.tells = 1

    assert _load(fake, tmp_path, Wanted("org/model")) == 1

    assert _found(tmp_path, "org/model") == {"model.safetensors.index.json"}
    assert "org/model: 4 of 5 files have not come" in capsys.readouterr().err


def test_what_is_wanted_twice_needs_room_once(tmp_path: Path) -> None:
    fake = FakeHub({"org/model": WHOLE})

    assert _load(fake, tmp_path, Wanted("org/model"), Wanted.parse("org/model@main"), free=300) == 0


def test_nothing_is_loaded_where_not_all_has_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeHub({"org/model": WHOLE})
    assert _load(fake, tmp_path, Wanted("org/model"), free=100) == 2
    assert "nothing has been loaded" in capsys.readouterr().err
    assert "model-1.safetensors" not in fake.sent


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert _load(FakeHub({}), tmp_path / "file" / "hub", Wanted("org/model")) == 2
    assert "file/hub: Not a directory" in capsys.readouterr().err


def test_what_killed_downloads_left_makes_room(tmp_path: Path) -> None:
    blobs = tmp_path / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    old, new = blobs / "a.1.incomplete", blobs / "a.2.incomplete"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    _load(FakeHub({"org/model": WHOLE}), tmp_path, Wanted("org/model"))
    assert not old.exists()
    assert new.exists()


def test_progress_counts_from_the_beginning_and_never_beyond_the_whole() -> None:
    sizes = iter([5_000_000_000, 8_000_000_000, 30_000_000_000])
    over = iter([False, False, True])
    lines: list[str] = []
    report(20_000_000_000, lambda: next(sizes), lambda _: next(over), lines.append)
    assert lines == ["3.00 GB of 20.0 GB, 100 MB/s", "20.0 GB of 20.0 GB, 567 MB/s"]


def test_a_revision_follows_an_at_sign() -> None:
    assert Wanted.parse("org/model@refs/pr/1") == Wanted("org/model", "refs/pr/1")
    assert str(Wanted.parse("org/model")) == "org/model"
    assert gigabytes(140_200_000_000) == "140.2 GB"


def test_a_command_line_without_a_model_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])


def test_the_command_loads_to_the_cache_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeHub({"org/model": WHOLE, "org/tokenizer": WHOLE})
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with fake.serving() as address:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        assert main(["org/model@main", "--tokenizer=org/tokenizer"]) == 0
    assert "model-1.safetensors" in _found(tmp_path, "org/model")
    assert _found(tmp_path, "org/tokenizer") == {
        "config.json", "model.safetensors.index.json", "tokenizer.json",
    }  # fmt: skip
