from pathlib import Path

from serve_app.batch.file_store import FileStore
from serve_app.batch.records import File, new_id
from serve_app.batch.retention import delete_old
from serve_app.batch.store import BatchStore

NOW = 1_800_000_000


def test_expired_and_interrupted_files_are_deleted(tmp_path: Path) -> None:
    store, files = BatchStore(f"sqlite:///{tmp_path}/batch.db"), FileStore(f"file://{tmp_path}/files")
    made = [File(new_id("file"), "", "batch", "a", 1, NOW, NOW + each) for each in [60] * 101 + [90_000]]
    for file in made:
        store.begin_file(file)
        files.write(file.object, [b"x"])
    for file in made[1:]:
        store.finish_file(file)

    assert delete_old(store, files, NOW + 60.0) == 101
    assert delete_old(store, files, NOW + 60.0) == 0

    assert files.names("files") == [made[-1].object]
    assert store.files("", NOW) == [made[-1]]
    store.close()
