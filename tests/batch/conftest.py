from pathlib import Path

import pytest

from tests.ledger.conftest import postgres_server, url

__all__ = ["files_url", "postgres_server", "url"]


@pytest.fixture(params=["folder", "s3"])
def files_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty file store of each kind."""
    if request.param == "folder":
        return f"file://{tmp_path}/state/a folder"
    return f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
