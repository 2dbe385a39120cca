"""The environment of the Ray that `tideserve run` starts."""

import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from serve_app import env
from serve_app.cli.listening import free_port, port_taken
from serve_app.settings.settings_error import SettingsError


def environment(proxy: str, *, local: bool) -> dict[str, str]:
    """Return the environment of Ray's processes. Variables that the operator has set are kept.

    `proxy` is `auto`, `haproxy` or `ray`; the last two override variables. Unless `local`, the cluster
    already runs and has its own flags.
    """
    values = {**env.ALWAYS, **(env.LOCAL if local else {}), **os.environ}
    env.find_compilers(values)
    fast = env.has_haproxy() if proxy == "auto" else proxy == "haproxy"
    for name, value in env.FAST_PATH.items():
        if proxy == "auto":
            values.setdefault(name, value if fast else "0")
        else:
            values[name] = value if fast else "0"
    for name, port in env.FAST_PATH_PORTS.items():
        if name not in values and port_taken(port):
            values[name] = str(free_port())
    if local and env.TEMPORARY_FOLDER not in values:
        values[env.TEMPORARY_FOLDER] = str(private_folder(Path(tempfile.gettempdir())))
    return values


def exports() -> str:
    """Return the shell commands that set this environment before `ray start`, on a cluster of your own."""
    front = str(Path(sys.executable).with_name("tideserve-front"))
    ours = {**env.HAPROXY, env.HAPROXY_COMMAND: front, env.AUTH_MODE: "token"}
    values = {**ours, **environment("auto", local=False)}
    changed = {name: value for name, value in values.items() if os.environ.get(name) != value}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in changed.items())


def private_folder(parent: Path) -> Path:
    """Return a folder for Ray's sessions that no other user can enter.

    Ray makes its folders writable for all users, including the folder of the raylet's socket. A user who can
    enter that folder could replace the socket. A socket's path has at most 107 bytes, so this path is short.

    Raises:
        SettingsError: if the folder belongs to another user, or others can enter it.
    """
    path = parent / f"tideserve-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror}; set {env.TEMPORARY_FOLDER}"]) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise SettingsError(
            [f"{path}: must be your folder, closed to other users; or set {env.TEMPORARY_FOLDER}"]
        )
    return path


def log_folder(values: Mapping[str, str]) -> Path:
    """Return the folder for the server's log until Ray has a log folder. `values` is Ray's environment.

    Raises:
        SettingsError: if the folder cannot be made.
    """
    if env.TEMPORARY_FOLDER not in values:
        return private_folder(Path(tempfile.gettempdir()))
    folder = Path(values[env.TEMPORARY_FOLDER])
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError([f"{env.TEMPORARY_FOLDER} = {folder}: {error.strerror}"]) from None
    return folder


if __name__ == "__main__":
    sys.stdout.write(exports())
