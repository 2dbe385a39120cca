import os
import stat
from pathlib import Path

import pytest

from serve_app import env
from serve_app.haproxy.environment import Limits, haproxy_environment
from serve_app.settings.settings_error import SettingsError

FAST = {env.HAPROXY_FLAG: "1"}
NODE = "5" * 56


def test_each_run_has_private_files(tmp_path: Path) -> None:
    values = [haproxy_environment(FAST, folder) for folder in _two_folders(tmp_path)]

    paths = [
        {value for name, value in one.items() if name.startswith("RAY_") and value.startswith("/")}
        for one in values
    ]
    assert len(paths[0]) == 6
    assert not paths[0] & paths[1]
    folder = Path(values[0]["RAY_SERVE_HAPROXY_SOCKET_PATH"]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.access(values[0][env.HAPROXY_COMMAND], os.X_OK)


def test_sockets_have_paths_as_short_as_they_must_be() -> None:
    """Ray adds the number of the node; 107 bytes is what Linux allows."""
    longest = Path("/tmp/tideserve-abcdefgh/h") / NODE / "metrics.sock"

    assert len(str(longest)) <= 107


def test_what_is_set_wins(tmp_path: Path) -> None:
    given = {
        **FAST,
        env.HAPROXY_COMMAND: "/usr/sbin/haproxy",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": "/run/a.sock",
        "RAY_SERVE_HAPROXY_MAXCONN": "100",
    }

    values = haproxy_environment(given, tmp_path)

    assert {name: values[name] for name in given} == given
    assert values["RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER"] == "1s"


def test_nothing_is_set_for_rays_own_proxy(tmp_path: Path) -> None:
    given = {env.HAPROXY_FLAG: "0", "A": "kept"}

    assert haproxy_environment(given, tmp_path) == given
    assert list(tmp_path.iterdir()) == []


def test_a_limit_out_of_bounds_is_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TIDESERVE_HEADER_TIMEOUT_S = '0'"):
        haproxy_environment({**FAST, env.HEADER_TIMEOUT_S: "0"}, tmp_path)


def test_a_limit_is_what_is_set_or_its_default() -> None:
    environ = {
        env.HEADER_TIMEOUT_S: "3600",
        env.CONNECTIONS_PER_ADDRESS: "1000000",
        env.HAPROXY_ADMIN_HOST: "::1",
    }

    assert Limits.read(environ) == Limits(3600, 1_000_000, "::1")
    assert Limits.read({}) == Limits(header_timeout_s=10, connections_per_address=0, admin_host="127.0.0.1")


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        (env.HEADER_TIMEOUT_S, "0", "from 1 to 3600"),
        (env.HEADER_TIMEOUT_S, "3601", "from 1 to 3600"),
        (env.HEADER_TIMEOUT_S, "1.5", "a whole number"),
        (env.HEADER_TIMEOUT_S, "\u00b2", "a whole number"),
        (env.CONNECTIONS_PER_ADDRESS, "-1", "from 0 to 1000000"),
        (env.CONNECTIONS_PER_ADDRESS, "1000001", "from 0 to 1000000"),
        (env.HAPROXY_ADMIN_HOST, "localhost", "an IP address"),
    ],
)
def test_a_limit_out_of_bounds_is_named_with_its_value(name: str, value: str, bound: str) -> None:
    with pytest.raises(ValueError, match=bound) as error:
        Limits.read({name: value})

    assert str(error.value).startswith(f"{name} = {value!r}: ")


def _two_folders(path: Path) -> list[Path]:
    folders = [path / "a", path / "b"]
    for folder in folders:
        folder.mkdir()
    return folders
