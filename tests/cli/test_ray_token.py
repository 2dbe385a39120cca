import re
from pathlib import Path

import pytest
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

from serve_app.cli.ray_token import prepare_token, token_header
from serve_app.settings.settings_error import SettingsError

ON = {"RAY_AUTH_MODE": "token"}
HERE = "http://127.0.0.1:8265"
THERE = "https://head.example:8265"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def default_file(home: Path, token: str = "a-token") -> Path:
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text(token)
    path.chmod(0o600)
    return path


def test_new_token_is_private_and_kept(home: Path) -> None:
    assert prepare_token(ON) == []

    path = home / ".ray" / "auth_token"
    assert re.fullmatch("[0-9a-f]{64}", path.read_text())
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700
    assert [item.name for item in path.parent.iterdir()] == ["auth_token"]
    token = path.read_text()
    assert (prepare_token(ON), path.read_text()) == ([], token)


def test_readable_token_is_made_private_and_reported(home: Path) -> None:
    path = default_file(home)
    path.chmod(0o644)

    [line] = prepare_token(ON)

    assert line == f"{path}: other users could read Ray's token (mode 644); its mode is now 600"
    assert mode(path) == 0o600


def test_a_file_that_is_named_is_neither_made_nor_changed(home: Path) -> None:
    path = home / "token"
    given = {**ON, "RAY_AUTH_TOKEN_PATH": str(path)}
    with pytest.raises(SettingsError, match=f"RAY_AUTH_TOKEN_PATH = {path}: No such file"):
        prepare_token(given)

    path.write_text("a-token")
    path.chmod(0o640)
    [line] = prepare_token(given)

    assert line.startswith(f"WARNING: RAY_AUTH_TOKEN_PATH = {path}: other users of this machine can read it")
    assert mode(path) == 0o640


def test_an_empty_file_is_refused(home: Path) -> None:
    default_file(home, " \n")

    with pytest.raises(SettingsError, match="the file is empty; it must contain a token"):
        prepare_token(ON)


def test_a_token_in_the_environment_needs_no_file(home: Path) -> None:
    assert prepare_token({**ON, "RAY_AUTH_TOKEN": "x"}) == []

    assert list(home.iterdir()) == []


def test_a_cluster_without_authentication_is_warned_of(home: Path) -> None:
    [line] = prepare_token({"RAY_AUTH_MODE": "disabled"})

    reason = "any program that can connect to Ray's ports can run code as you"
    assert line == f"WARNING: RAY_AUTH_MODE = 'disabled': {reason}"
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "environment", "sent"),
    [
        *((address, {}, True) for address in (HERE, "http://localhost:8265", "http://[::1]:8265")),
        (THERE, {}, False),
        (THERE, {"RAY_AUTH_MODE": "token"}, True),
        (THERE, {"RAY_AUTH_TOKEN": "a-token"}, True),
        (HERE, {"RAY_AUTH_MODE": "disabled"}, False),
    ],
)
def test_other_machines_get_only_configured_tokens(
    home: Path, monkeypatch: pytest.MonkeyPatch, address: str, environment: dict[str, str], sent: bool
) -> None:
    default_file(home)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert token_header(address) == ({"authorization": "Bearer a-token"} if sent else {})


def test_where_there_is_no_token_none_is_sent() -> None:
    assert token_header(HERE) == {}


def test_a_file_that_is_named_and_missing_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "none"))

    with pytest.raises(SettingsError, match="Ray's token: RAY_AUTH_TOKEN_PATH is set but"):
        token_header(HERE)


def test_what_was_read_once_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own connections of this process would go on with it."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "before")
    assert token_header(HERE) == {"authorization": "Bearer before"}

    monkeypatch.setenv("RAY_AUTH_TOKEN", "after")

    assert AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True) == "after"
    AuthenticationTokenLoader.instance().reset_cache()
