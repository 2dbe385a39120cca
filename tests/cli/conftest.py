import pytest

from serve_app import env


@pytest.fixture(autouse=True)
def _cpus_of_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file is checked against must not be the machine that runs the tests."""
    monkeypatch.setenv(env.RAY_RESOURCES, '{"CPU": 8}')
