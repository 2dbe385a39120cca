from __future__ import annotations

import pytest

from serve_app.cli.environment_proxy import proxy_for


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
