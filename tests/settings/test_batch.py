import pytest

from serve_app import env
from serve_app.settings.load import load_settings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.storage import BatchSettings, batch_database_url, batch_files_url


def batch(**given: object) -> BatchSettings:
    return load_settings({"models": [{"name": "tide", "device": "cpu"}], "batch": given}).batch


@pytest.mark.parametrize(
    "url", ["file:///var/lib/tide", "s3://bucket", "s3://bucket/a/b", "gs://b/x", "az://b"]
)
def test_files_have_a_url(url: str) -> None:
    assert batch(files=url).files == url


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"files": "/var/lib/tide"},
            "batch.files = '/var/lib/tide': must be file:///path, s3://bucket/folder",
        ),
        ({"files": "file://var"}, "batch.files = 'file://var': must be"),
        ({"files": "s3://"}, "batch.files = 's3://': must be"),
        ({"files": "s3://bucket?x=1"}, r"batch.files = 's3://bucket\?x=1': must be"),
        ({"database": "batch.db"}, "batch.database = 'batch.db': must be postgresql://"),
        ({"max_file_bytes": 0}, "batch.max_file_bytes = 0"),
        ({"max_requests": True}, "batch.max_requests = True"),
        ({"retention_days": 0}, "batch.retention_days = 0"),
    ],
)
def test_invalid_values_are_named(given: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        batch(**given)


def test_stores_are_in_the_users_state_folder_by_default() -> None:
    settings = BatchSettings()

    assert batch_database_url(settings, {"XDG_STATE_HOME": "/state"}) == "sqlite:////state/tideserve/batch.db"
    assert batch_files_url(settings, {"XDG_STATE_HOME": "/state"}) == "file:///state/tideserve/batch"


def test_environment_overrides_the_database() -> None:
    settings = BatchSettings(database="sqlite:////batch.db")

    assert batch_database_url(settings, {}) == "sqlite:////batch.db"
    assert (
        batch_database_url(settings, {env.BATCH_DATABASE_URL: "postgres://host/db"}) == "postgres://host/db"
    )


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        ({}, False),
        ({"database": "postgres://host/db"}, False),
        ({"database": "postgres://host/db", "files": "file:///nfs"}, False),
        ({"database": "sqlite:////x.db", "files": "s3://b"}, False),
        ({"database": "postgres://host/db", "files": "s3://b"}, True),
    ],
)
def test_several_nodes_need_a_database_and_an_object_store(given: dict[str, str], shared: bool) -> None:
    assert batch(**given).shared is shared
