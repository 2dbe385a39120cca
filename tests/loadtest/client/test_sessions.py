from __future__ import annotations

import resource

import pytest

from serve_app.loadtest.client.sessions import allow_many_connections, proxy_for


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allowed = allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed
        assert allowed > 512
        assert allow_many_connections() == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_proxy_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_for("https://models.example/") is None
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert proxy_for("https://models.example/") == "http://proxy.example:3128"
    assert proxy_for("http://models.example/") is None
    assert proxy_for("https://127.0.0.1:8000") is None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2:8000", "[::1]:8000", "a.localhost"])
def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    assert proxy_for("http://models.example") == "http://proxy.example:3128"
    assert proxy_for(f"http://{host}") is None
