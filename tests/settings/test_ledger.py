from typing import Any

import pytest

from serve_app import env
from serve_app.settings.keys_file import parse_keys
from serve_app.settings.load import load_settings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.storage import LedgerSettings, ledger_url
from serve_app.settings.tree import AppSettings


def ledger(**given: object) -> LedgerSettings:
    return load_settings({"models": [{"name": "tide", "device": "cpu"}], "ledger": given}).ledger


@pytest.mark.parametrize(
    "url", ["sqlite:////var/lib/usage.db", "postgresql://tide@host/db", "postgres://host/db"]
)
def test_a_database_has_a_url(url: str) -> None:
    assert ledger(url=url).url == url


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"url": "sqlite:///usage.db"}, "ledger.url = 'sqlite:///usage.db': must be postgresql://"),
        ({"url": "mysql://host/db"}, "ledger.url = 'mysql://host/db': must be postgresql://"),
        ({"currency": "dollars"}, "ledger.currency = 'dollars'"),
        ({"gpu_hour_prices": {"H100": -1}}, r"ledger.gpu_hour_prices.H100 = -1"),
        ({"retention_days": 0}, "ledger.retention_days = 0"),
    ],
)
def test_invalid_values_are_named(given: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        ledger(**given)


def test_prices_are_by_the_type_of_the_gpu() -> None:
    settings = ledger(gpu_hour_prices={"H100": 4.0, "cpu": 0.1, "any": 2.0})

    assert settings.gpu_hour_price("gpu", "H100") == 4.0
    assert settings.gpu_hour_price("gpu", None) == 2.0
    assert settings.gpu_hour_price("gpu", "L4") == 0.0
    assert settings.gpu_hour_price("cpu", "A100") == 0.1


def test_the_ledger_is_a_file_of_the_user_by_default() -> None:
    settings = LedgerSettings()

    assert ledger_url(settings, {"XDG_STATE_HOME": "/state"}) == "sqlite:////state/tideserve/usage.db"
    assert ledger_url(settings, {}).endswith("/.local/state/tideserve/usage.db")


def test_the_environment_overrides_the_setting() -> None:
    settings = LedgerSettings(url="sqlite:////usage.db")

    assert ledger_url(settings, {}) == "sqlite:////usage.db"
    assert ledger_url(settings, {env.LEDGER_URL: "postgresql://host/db"}) == "postgresql://host/db"


def test_an_invalid_url_of_the_environment_is_not_repeated() -> None:
    with pytest.raises(SettingsError, match="TIDESERVE_LEDGER_URL: must be postgresql:") as caught:
        ledger_url(LedgerSettings(), {env.LEDGER_URL: "mysql://tide:secret@host/db"})
    assert "secret" not in str(caught.value)


KEYS = parse_keys(b"keys: [{name: web, key: sk-web, budget: {usd: 3, per: day}}]")


def budgeted(**ledger: Any) -> AppSettings:
    return load_settings({"models": [{"name": "a", "device": "cpu"}], "ledger": ledger})


@pytest.mark.parametrize(
    "ledger",
    [
        {"gpu_hour_prices": {"cpu": 1.0}},
        {"usd_per_million_tokens": {"a": {"prompt": 1.0, "completion": 2.0}}},
    ],
)
def test_budgets_need_a_price(ledger: dict[str, Any]) -> None:
    budgeted(**ledger).check_keys(KEYS)


def test_settings_that_cannot_keep_budgets_refuse_them() -> None:
    with pytest.raises(SettingsError) as caught:
        budgeted(enabled=False, currency="EUR").check_keys(KEYS)

    assert caught.value.problems == [
        "ledger.enabled = false: must be true, because key/web has a budget",
        "ledger.currency = 'EUR': must be 'USD', because key/web has a budget",
        "ledger.gpu_hour_prices, ledger.usd_per_million_tokens: no model has a price, because key/web "
        "has a budget",
    ]


def test_prices_of_tokens_are_of_models() -> None:
    with pytest.raises(SettingsError, match=r"usd_per_million_tokens\.b: must be the name of a model"):
        budgeted(usd_per_million_tokens={"b": {"prompt": 1.0, "completion": 2.0}})
