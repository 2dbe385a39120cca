from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch.stored import Stored
from tests.ledger.conftest import new_database, postgres_server, url

__all__ = ["files_url", "postgres_server", "url"]


@pytest.fixture(params=["folder", "s3"])
def files_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty file store of each kind."""
    if request.param == "folder":
        return f"file://{tmp_path}/state/a folder"
    return f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"


@pytest.fixture(params=["one node", "a cluster"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    """A queue over SQLite and a folder, and over Postgres and S3."""
    places = ("", "")
    if request.param == "a cluster":
        database = new_database(request.getfixturevalue("postgres_server"))
        places = (database, f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}")
    stored = Stored(tmp_path, *places)
    yield stored
    stored.store.close()
