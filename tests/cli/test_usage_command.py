from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from serve_app.cli.main import main
from tests.http_server import Answer, serving

DOCUMENT: dict[str, Any] = {
    "object": "usage",
    "by": "key",
    "since": "2026-11-25T02:00:00+00:00",
    "until": "2026-11-26T02:00:00+00:00",
    "currency": "EUR",
    "data": [
        {
            "key": "team-search",
            "requests": 12_345,
            "prompt_tokens": 9_876_543,
            "cached_tokens": 1_000_000,
            "completion_tokens": 654_321,
            "gpu_seconds": 3600.04,
            "cost": 4.0,
        },
        {"key": "", "requests": 1, "prompt_tokens": 10, "gpu_seconds": 0.5},
    ],
    "unused": [
        {"state": "idle", "gpu_seconds": 1800.0, "cost": 2.0},
        {"state": "starting", "gpu_seconds": 90.0, "cost": 0.1},
    ],
    "total": {
        "requests": 12_346,
        "prompt_tokens": 9_876_553,
        "cached_tokens": 1_000_000,
        "completion_tokens": 654_321,
        "gpu_seconds": 5490.54,
        "cost": 6.1,
    },
}
TABLE = """\
2026-11-25T02:00:00+00:00 to 2026-11-26T02:00:00+00:00

key          requests     prompt     cached  completion    GPU s   EUR
team-search    12,345  9,876,543  1,000,000     654,321  3,600.0  4.00
(no key)            1         10          0           0      0.5  0.00
----------------------------------------------------------------------
idle                                                     1,800.0  2.00
starting                                                    90.0  0.10
----------------------------------------------------------------------
total          12,346  9,876,553  1,000,000     654,321  5,490.5  6.10
"""


class Endpoint:
    """Answers `GET /usage`, and keeps the queries."""

    def __init__(self, status: int, body: Any) -> None:
        self.answer: Answer = (status, body)
        self.queries: list[dict[str, list[str]]] = []

    def __call__(self, method: str, path: str, content: bytes) -> Answer:
        assert (method, urlsplit(path).path) == ("GET", "/usage")
        self.queries.append(parse_qs(urlsplit(path).query))
        return self.answer


def test_usage_is_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-tide")
    endpoint, keys = Endpoint(200, DOCUMENT), list[str | None]()
    with serving(endpoint, keys) as url:
        assert main(["usage", "--url", url]) == 0

    assert capsys.readouterr().out == TABLE
    assert endpoint.queries == [{"by": ["key"], "since": ["24h"], "until": ["0m"]}]
    assert keys == ["Bearer sk-tide"]


def test_budgets_are_a_second_table(capsys: pytest.CaptureFixture[str]) -> None:
    budget = {"budget": "key/web", "usd": 30, "per": "month", "spent": 1.234, "reserved": 0.5, "left": 28.266}
    budget["until"] = "2026-11-30T23:00:00+00:00"
    with serving(Endpoint(200, DOCUMENT | {"budgets": [budget]})) as url:
        assert main(["usage", "--url", url]) == 0

    assert (
        capsys.readouterr().out
        == TABLE
        + """
budget     USD  per    spent  reserved   left  renews
key/web  30.00  month   1.23      0.50  28.27  2026-11-30T23:00:00+00:00
"""
    )


def test_csv_is_printed_as_the_server_sends_it(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = Endpoint(200, b"lane,state\r\nbackground,used\r\n")
    with serving(endpoint, []) as url:
        assert main(["usage", "--csv", "--by", "lane", "--since", "2026-11-01", "--url", url]) == 0

    assert capsys.readouterr().out.splitlines() == ["lane,state", "background,used"]
    assert endpoint.queries[0]["format"] == ["csv"]
    assert endpoint.queries[0]["since"] == ["2026-11-01"]


@pytest.mark.parametrize("options", [[], ["--csv"]])
def test_old_figures_are_said_beside_the_table(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    headers = {"X-Tideserve-Unwritten-Since": "2026-11-25T23:00:00+00:00"}
    with serving(lambda *_: (200, DOCUMENT, headers)) as url:
        assert main(["usage", "--url", url, *options]) == 0

    printed = capsys.readouterr()
    assert "old" not in printed.out
    assert printed.err == (
        "Warning: these figures are old. The ledger stores no usage since 2026-11-25T23:00:00+00:00.\n"
    )


def test_a_refused_parameter_is_the_servers_message(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"error": {"message": "since = 'x': must be a time.", "code": "invalid_value"}}
    with serving(Endpoint(400, error), []) as url:
        assert main(["usage", "--since", "x", "--url", url]) == 1

    assert "invalid_value: since = 'x': must be a time." in capsys.readouterr().err


def test_another_servers_answer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Endpoint(200, {"object": "list"}), []) as url:
        assert main(["usage", "--url", url]) == 1

    assert "not one of this version of Tideserve: by: required" in capsys.readouterr().err


def test_a_url_must_be_http(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--url", "localhost:8000"]) == 1
    assert "--url = 'localhost:8000'" in capsys.readouterr().err
