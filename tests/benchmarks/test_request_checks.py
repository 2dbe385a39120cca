from pathlib import Path

from benchmarks.request_checks import measure


async def test_every_check_is_measured(tmp_path: Path) -> None:
    results = await measure(20, tmp_path)

    assert list(results) == [
        "a key",
        "a key, with OIDC on",
        "a new token of 1 KB",
        "a checked token of 1 KB",
        "a new token of 8 KB",
        "a checked token of 8 KB",
        "a reservation, no budget",
        "a reservation, two budgets",
    ]
    assert min(results.values()) > 0.0
