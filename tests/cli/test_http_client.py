import pytest

from serve_app import env
from serve_app.cli.http_client import authorization, error_words, fetch, proxy_for
from serve_app.settings.settings_error import SettingsError
from tests.http_server import serving


def test_the_key_is_a_bearer_token() -> None:
    assert authorization({env.API_KEY: " sk-tide=/1\n"}) == {"Authorization": "Bearer sk-tide=/1"}


@pytest.mark.parametrize("given", [{}, {env.API_KEY: ""}, {env.API_KEY: " \n"}])
def test_without_a_key_nothing_is_sent(given: dict[str, str]) -> None:
    assert authorization(given) == {}


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-one\r\nHost: x", "sk one", "schlüssel", "sk\x00"])
def test_invalid_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(SettingsError) as error:
        authorization({env.API_KEY: key})

    assert error.value.problems == ["OPENAI_API_KEY: must be on one line of printable ASCII without spaces"]


def test_a_key_is_not_sent_to_where_a_server_redirects() -> None:
    keys: list[str | None] = []
    with serving(lambda _, path, __: (302, "/there") if path == "/" else (200, b""), keys) as url:
        assert fetch(f"{url}/", {"Authorization": "Bearer sk"}, 5.0).status == 200

    assert keys == ["Bearer sk", None]


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


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"error":{"message":"full","code":"queue_full"}}', "queue_full: full"),
        (b'{"error":{"message":"full","type":"server_error","code":null}}', "server_error: full"),
        (b'{"error":"no such route"}', "no such route"),
        (b"<h1>Bad Gateway</h1>\n", "<h1>Bad Gateway</h1>"),
        (b"no\n  application\n", "no application"),
        (b"[1]", "[1]"),
        (b"", ""),
    ],
)
def test_errors_in_words(data: bytes, words: str) -> None:
    assert error_words(data) == words


def test_an_error_nested_beyond_reading_is_told_as_it_is() -> None:
    assert error_words(b'{"error":' + b"[" * 100_000).startswith('{"error":[[')
