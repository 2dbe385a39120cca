from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch.s3_server import S3_PYTHON, s3_server
from tests.ledger.conftest import postgres_server, url

__all__ = ["files_url", "postgres_server", "s3", "url"]


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of an S3 server."""
    if not S3_PYTHON.exists():
        pytest.skip("no .venv/moto: run make setup-dev")
    with s3_server() as address:
        yield address


@pytest.fixture(params=["folder", "s3"])
def files_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty file store of each kind."""
    if request.param == "folder":
        return f"file://{tmp_path}/state/a folder"
    return new_bucket_folder(request.getfixturevalue("s3"), tmp_path, monkeypatch)


def new_bucket_folder(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty folder of an S3 server, whose credentials are set in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "tide",
        "AWS_SECRET_ACCESS_KEY": "tide",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://tide/{tmp_path.name}"
