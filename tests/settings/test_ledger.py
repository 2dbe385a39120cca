import pytest

from serve_app.settings import SettingsError, load_settings
from serve_app.settings.ledger import LedgerSettings


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
