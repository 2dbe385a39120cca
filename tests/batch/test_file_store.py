"""One contract for all file stores."""

import os
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError

from serve_app.batch.file_store import STORE_ERRORS, DamagedError, FileStore

PART = b"0123456789abcdef" * (1 << 16)
"""A mebibyte."""


async def parts(count: int, error: Exception | None = None) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield PART
    if error is not None:
        raise error


class TestFileStore:
    @pytest.fixture
    def files(self, files_url: str) -> FileStore:
        return FileStore(files_url)

    async def test_upload_of_many_parts_is_read_back(self, files: FileStore) -> None:
        await files.upload("files/a", parts(12))

        assert files.whole("files/a") == PART * 12
        assert files.read("files/a", (6 << 20) - 4, 8) == b"cdef0123"
        assert await files.read_async("files/a", 1, 3) == b"123"
        assert b"".join(files.chunks("files/a", 12 << 20)) == PART * 12

    async def test_interrupted_upload_leaves_no_object(self, files: FileStore) -> None:
        with pytest.raises(ValueError, match="left"):
            await files.upload("files/a", parts(12, ValueError("left")))

        assert files.names("files") == []

    def test_ranges_are_read_at_once(self, files: FileStore) -> None:
        files.write("files/a", [b"first\n", b"second\n"])

        assert files.ranges("files/a", [(6, 6), (0, 5)]) == [b"second", b"first"]

    def test_write_may_read_from_the_store(self, files: FileStore) -> None:
        for number in range(3):
            files.write(f"parts/b/{number}", [b"%d\n" % number])

        files.write("files/all", (files.read(name, 0, 2) for name in files.names("parts/b")))

        assert files.read("files/all", 0, 6) == b"0\n1\n2\n"

    def test_names_are_those_of_a_folder(self, files: FileStore) -> None:
        for name in ("parts/a/2", "parts/a/1", "parts/ab/1", "files/a"):
            files.write(name, [b"x"])

        assert files.names("parts/a") == ["parts/a/1", "parts/a/2"]
        assert files.names("nothing") == []

    def test_deletion_ignores_missing_objects(self, files: FileStore) -> None:
        files.write("files/a", [b"x"])

        files.delete(["files/a", "files/b"])

        assert files.names("files") == []

    def test_ranges_behind_the_end_are_damage(self, files: FileStore) -> None:
        files.check(new=True)
        files.write("files/a", [b"x" * 100])

        with pytest.raises(DamagedError, match="files/a is damaged"):
            files.ranges("files/a", [(0, 10), (90, 60), (150, 10)])

    async def test_damaged_object_is_named(self, files: FileStore) -> None:
        files.check(new=True)
        files.write("files/empty", [b""])
        files.write("files/short", [b"abc"])

        for name in ("files/empty", "files/short", "files/missing"):
            with pytest.raises(DamagedError, match=name):
                files.read(name, 1, 9)
        with pytest.raises(DamagedError, match="files/missing"):
            files.whole("files/missing")
        for name in ("files/empty", "files/short"):
            with pytest.raises(DamagedError, match=name):
                await files.read_async(name, 0, 9)
        with pytest.raises(FileNotFoundError):
            await files.read_async("files/missing", 0, 1)

    def test_many_objects_are_deleted_at_once(self, files: FileStore) -> None:
        names = [f"parts/b/{number}" for number in range(40)]
        for name in names[1:]:
            files.write(name, [b"x"])

        files.delete([])
        files.delete(names)

        assert files.names("parts") == []


def test_a_store_that_is_away_is_no_damaged_object(tmp_path: Path) -> None:
    files = FileStore(f"file://{tmp_path}/batch")
    files.write("files/a", [b"x"])
    shutil.rmtree(tmp_path / "batch")
    (tmp_path / "batch").touch()

    with pytest.raises(STORE_ERRORS):
        files.read("files/a", 0, 1)
    with pytest.raises(STORE_ERRORS):
        files.delete(["files/a", "files/b"])


def test_object_that_cannot_be_deleted_stops_no_other(tmp_path: Path) -> None:
    files = FileStore(f"file://{tmp_path}")
    files.check(new=True)
    names = [f"files/{number}" for number in range(40)]
    for name in names:
        (tmp_path / name / "x").mkdir(parents=True) if name == "files/3" else files.write(name, [b"x"])

    assert files.delete(names) == {"files/3"}

    assert files.names("files") == []


def test_a_share_that_is_not_mounted_is_no_damaged_object(tmp_path: Path) -> None:
    """Its mount point is an empty folder, which may be written."""
    files = FileStore(f"file://{tmp_path}/batch")
    files.check(new=True)
    files.write("files/a", [b"x"])
    (tmp_path / "batch").rename(tmp_path / "share")
    (tmp_path / "batch").mkdir()

    with pytest.raises(OSError, match="lacks the object 'store'"):
        files.whole("files/a")


def test_share_that_is_not_mounted_keeps_its_objects(tmp_path: Path) -> None:
    files = FileStore(f"file://{tmp_path}/share")
    files.check(new=True)
    files.write("files/a", [b"a"])
    (tmp_path / "share").rename(tmp_path / "elsewhere")
    (tmp_path / "share").mkdir()

    assert files.delete(["files/a"]) == {"files/a"}


def test_a_refused_read_is_no_damaged_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy of a bucket may forbid reads alone."""
    files = FileStore(f"file://{tmp_path}")
    files.check(new=True)

    def refused(*_: object, **__: object) -> None:
        raise PermissionDeniedError("403")

    monkeypatch.setattr(obstore, "get", refused)
    with pytest.raises(PermissionDeniedError):
        files.whole("files/a")


def test_object_is_on_the_disk_once_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the folders that lead to it."""
    synced = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path))

    monkeypatch.setattr(os, "fsync", note)
    FileStore(f"file://{tmp_path}").write("parts/b/1", [b"x"])

    assert list(map(str, synced)) == ["parts/b/1", "parts/b", "parts", "."]


def test_killed_write_is_deleted_after_a_day(tmp_path: Path) -> None:
    files = FileStore(f"file://{tmp_path}")
    files.write("files/whole", [b"x"])
    torn = tmp_path / "files" / "torn#1"
    torn.write_bytes(b"half")
    written = torn.stat().st_mtime

    files.delete_torn(before=written)
    assert torn.exists()
    files.delete_torn(before=written + 1)

    assert not torn.exists()
    assert files.names("files") == ["files/whole"]


def test_folder_is_closed_to_other_users(tmp_path: Path) -> None:
    FileStore(f"file://{tmp_path}/batch").write("files/a", [b"x"])

    assert stat.S_IMODE(os.stat(tmp_path / "batch").st_mode) == 0o700
