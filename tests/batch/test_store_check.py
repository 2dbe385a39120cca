from pathlib import Path

import sqlalchemy

from serve_app.batch.store import BatchStore
from serve_app.batch.store_check import check_database, check_files
from serve_app.database import connect


def test_database_is_writable_and_has_a_version(url: str) -> None:
    store = BatchStore(url)
    store.open_batches()
    store.close()

    assert check_database(url) == "writable, tables of version 1"


def test_check_changes_no_table(url: str) -> None:
    engine = connect(url, 1)
    if engine.dialect.name == "sqlite":
        Path(engine.url.database or "").parent.mkdir(exist_ok=True)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("SELECT 1"))

    check_database(url)

    names = sqlalchemy.inspect(engine).get_table_names()
    engine.dispose()
    assert names == []


def test_tables_of_another_version_are_named(url: str) -> None:
    store = BatchStore(url)
    with store.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE tideserve_tables SET version = 99"))
    store.close()

    assert "have version 99, and this release needs version 1" in check_database(url)


def test_missing_folders_will_be_made(tmp_path: Path) -> None:
    assert check_database(f"sqlite:///{tmp_path}/a/b/batch.db") == "will be made"
    assert check_files(f"file://{tmp_path}/a/b") == "will be made"
    assert list(tmp_path.iterdir()) == []


def test_database_that_is_away_is_not_usable(tmp_path: Path) -> None:
    state = check_database(f"postgresql://tide:secret@/db?host={tmp_path}")

    assert state.startswith("cannot be used from this machine: ")
    assert "secret" not in state


def test_file_store_is_writable(files_url: str) -> None:
    assert check_files(files_url) in ("writable", "will be made")


def test_folder_that_is_a_file_is_not_usable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    assert check_files(f"file://{tmp_path}/file").startswith("cannot be used from this machine: ")
