import fcntl
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileOpener
from huggingface_hub import constants
from obstore.store import from_url

from serve_app.weights import adapter_store
from serve_app.weights.adapter_store import AdapterError, AdapterStore, StoredAdapter, adapter_folder
from tests.http_server import serving, silent_server

SIZE = 1000


def source(folder: Path, size: int = SIZE) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(b"{}")
    (folder / "adapter_model.safetensors").write_bytes(b"x" * (size - 2))
    (folder / "README.md").write_bytes(b"not copied")
    return str(folder)


def copies(root: Path) -> list[Path]:
    return sorted(root.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "copies"


def test_files_are_copied_once(tmp_path: Path, root: Path) -> None:
    store, where = AdapterStore(root, 10 * SIZE), source(tmp_path / "a")

    first = store.fetch(where)
    (tmp_path / "a" / "adapter_config.json").write_bytes(b"changed")
    again = store.fetch(where)

    assert first.path == again.path
    assert sorted(file.name for file in first.path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert (first.path / "adapter_config.json").read_bytes() == b"{}"


def test_any_file_system_of_fsspec_is_a_source(root: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/pirate/adapter_config.json", b"{}")
    memory.pipe("/bucket/pirate/adapter_model.safetensors", b"weights")

    stored = AdapterStore(root, SIZE).fetch("memory://bucket/pirate")

    assert (stored.path / "adapter_model.safetensors").read_bytes() == b"weights"


def test_a_hugging_face_id_is_read_at_its_revision(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def url_to_fs(url: str, **_: object) -> object:
        asked.append(url)
        raise FileNotFoundError

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    for name in ("org/pirate", "hf:org/pirate@v1"):
        with pytest.raises(AdapterError):
            AdapterStore(root, SIZE).fetch(name)

    assert asked == ["hf://org/pirate", "hf://org/pirate@v1"]


def test_an_object_store_is_a_source_as_installed(root: Path, s3_bucket: str) -> None:
    bucket, weights = from_url(s3_bucket), os.urandom(3 << 20)
    bucket.put("adapters/pirate/adapter_config.json", b"{}")
    bucket.put("adapters/pirate/adapter_model.safetensors", weights)
    store = AdapterStore(root, 4 << 20)

    stored = store.fetch(f"{s3_bucket}/adapters/pirate")

    assert (stored.path / "adapter_model.safetensors").read_bytes() == weights
    with pytest.raises(AdapterError, match=r"has no adapter_config\.json") as refused:
        store.fetch(f"{s3_bucket}/adapters/nobody")
    assert refused.value.status == 404


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_source_without_a_file_is_404(tmp_path: Path, root: Path, missing: str) -> None:
    where = source(tmp_path / "a")
    (tmp_path / "a" / missing).unlink()

    with pytest.raises(AdapterError, match=r"has no adapter_config\.json or adapter_model\.") as refused:
        AdapterStore(root, SIZE).fetch(where)

    assert refused.value.status == 404
    assert copies(root) == []


def test_an_unknown_scheme_is_400(root: Path) -> None:
    with pytest.raises(AdapterError, match="its source cannot be read") as refused:
        AdapterStore(root, SIZE).fetch("nothing://bucket/pirate")

    assert refused.value.status == 400
    assert "Protocol not known" in str(refused.value.__cause__)


def test_a_source_that_does_not_answer_is_503(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "https://tide:token@host/pirate"

    def url_to_fs(*_: object, **__: object) -> object:
        raise ConnectionError(f"no route to {secret}")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)

    with pytest.raises(AdapterError, match=r"^its source cannot be read now$") as refused:
        AdapterStore(root, SIZE).fetch(secret)

    assert refused.value.status == 503
    assert secret in str(refused.value.__cause__)


@pytest.mark.parametrize(("answer", "status"), [(404, 404), (403, 404), (500, 503)])
def test_http_source_with_a_fault_of_its_own_is_503(root: Path, answer: int, status: int) -> None:
    with serving(lambda *_: (answer, b"")) as address, pytest.raises(AdapterError) as refused:
        AdapterStore(root, SIZE).fetch(f"{address}/pirate")

    assert refused.value.status == status


def test_http_source_without_a_server_is_503(root: Path) -> None:
    with silent_server() as address:
        pass  # nobody listens any more

    with pytest.raises(AdapterError, match=r"^its source cannot be read now$") as refused:
        AdapterStore(root, SIZE).fetch(f"{address}/pirate")

    assert refused.value.status == 503


@pytest.mark.parametrize("scheme", ["http", "s3", "hf"])
def test_a_source_that_hangs_is_503_after_the_deadline(
    root: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(adapter_store, "STALL_S", 0.2)
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/good/adapter_config.json", b"{}")
    memory.pipe("/bucket/good/adapter_model.safetensors", b"weights")
    with silent_server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        hanging = {"http": f"{address}/pirate", "s3": f"{s3_bucket}/pirate", "hf": "hf:org/pirate"}
        store = AdapterStore(root, SIZE)

        with pytest.raises(AdapterError, match=r"^its source has given nothing for 0\.2 s$") as refused:
            store.fetch(hanging[scheme])

        assert refused.value.status == 503
        monkeypatch.setattr(adapter_store, "STALL_S", 60.0)
        assert store.fetch("memory://bucket/good").path.is_dir()


def test_a_larger_adapter_than_the_bound_is_400(tmp_path: Path, root: Path) -> None:
    with pytest.raises(
        AdapterError, match=f"has {SIZE - 2} bytes, .* lora.max_bytes = {SIZE - 3}"
    ) as refused:
        AdapterStore(root, SIZE - 3).fetch(source(tmp_path / "a"))

    assert refused.value.status == 400
    assert copies(root) == []


def test_the_least_recently_used_copy_makes_room(tmp_path: Path, root: Path) -> None:
    store = AdapterStore(root, 2 * SIZE)
    names = [source(tmp_path / name) for name in "abc"]
    for name in names[:2]:
        store.fetch(name).close()
    (first, second) = copies(root)
    used = store.fetch(names[0])
    os.utime(next(path for path in (first, second) if path != used.path), (1, 1))
    used.close()

    store.fetch(names[2])

    assert used.path.is_dir()
    assert len(copies(root)) == 2


def test_a_copy_in_use_is_not_deleted(tmp_path: Path, root: Path) -> None:
    in_use = AdapterStore(root, SIZE).fetch(source(tmp_path / "a"))
    where = source(tmp_path / "b")

    with pytest.raises(
        AdapterError, match=f"adapters in use take {SIZE + 2} of lora.max_bytes = {SIZE + 2}"
    ) as busy:
        AdapterStore(root, SIZE + 2).fetch(where)
    assert busy.value.status == 503
    in_use.close()

    AdapterStore(root, SIZE).fetch(where)
    assert StoredAdapter.lock(in_use.path) is None


def test_concurrent_copies_keep_the_bound(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sources = AdapterStore(root, 3 * SIZE), [source(tmp_path / name) for name in "abcdefgh"]
    most, read, both = [0], LocalFileOpener.read, threading.Barrier(2)

    def read_beside_others(*args: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.05)  # so that copies are unfinished at the same time
        folder = os.open(root, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)  # else a folder that is renamed meanwhile counts twice
        with suppress(FileNotFoundError):  # a copy that found no room goes without the lock
            most.append(sum(file.stat().st_size for file in root.glob("*/*")))
        os.close(folder)
        return read(*args)

    def fetch(where: str) -> None:
        with suppress(AdapterError):
            store.fetch(where).close()

    monkeypatch.setattr(LocalFileOpener, "read", read_beside_others)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fetch, sources))

    assert SIZE < max(most) <= 3 * SIZE


def test_no_copy_is_found_whose_deletion_was_killed(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [source(tmp_path / name) for name in "ab"]
    store = AdapterStore(root, SIZE)
    old = store.fetch(names[0])
    old.close()

    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        store.fetch(names[1]).close()
    assert StoredAdapter.lock(old.path) is None
    store.fetch(names[0])

    assert copies(root) == [old.path]


def test_what_a_killed_process_left_is_deleted(tmp_path: Path, root: Path) -> None:
    left = root / ".unfinished"
    left.mkdir(parents=True)
    (left / "adapter_config.json").write_bytes(b"{")

    AdapterStore(root, SIZE).fetch(source(tmp_path / "a"))

    assert not left.exists()


def test_threads_that_copy_the_same_adapter_agree(tmp_path: Path, root: Path) -> None:
    store, where, found = AdapterStore(root, SIZE * 10), source(tmp_path / "a"), list[StoredAdapter]()
    threads = [threading.Thread(target=lambda: found.append(store.fetch(where))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({stored.path for stored in found}) == 1
    assert len(found) == 8
    assert copies(root) == [found[0].path]


def test_models_have_folders_of_their_own() -> None:
    cache = {"XDG_CACHE_HOME": "/cache"}

    assert adapter_folder("org/a", cache) != adapter_folder("org/b", cache)
    assert str(adapter_folder("org/a", cache)).startswith("/cache/tideserve/adapters/")
