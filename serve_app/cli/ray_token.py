"""The token of Ray's authentication.

Ray reads `RAY_AUTH_TOKEN`, the file `RAY_AUTH_TOKEN_PATH` or `~/.ray/auth_token`, in this order. Any program
that has the token can run code as the user who started the cluster. Ray makes the last file readable for all
users.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from serve_app import env
from serve_app.cli.http_client import is_loopback
from serve_app.settings.settings_error import SettingsError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def prepare_token(values: Mapping[str, str]) -> list[str]:
    """Make sure that a new cluster in the environment `values` has a token that no other user can read.

    Returns:
        Lines for the user who starts the cluster.

    Raises:
        SettingsError: if the token's file cannot be read or written.
    """
    if values.get(env.AUTH_MODE, "").lower() != "token":
        mode = f"{env.AUTH_MODE} = {values.get(env.AUTH_MODE)!r}"
        return [f"WARNING: {mode}: any program that can connect to Ray's ports can run code as you"]
    if values.get(env.AUTH_TOKEN):
        return []
    if given := values.get(env.AUTH_TOKEN_PATH):
        path, key = Path(given), env.AUTH_TOKEN_PATH
    else:
        path, key = Path.home() / ".ray" / "auth_token", "Ray's token"
    try:
        if not given:
            _create(path)
        if not path.read_text(encoding="utf-8").strip():
            raise SettingsError([f"{key} = {path}: the file is empty; it must contain a token"])
        permissions = stat.S_IMODE(path.stat().st_mode)
        if not permissions & _OTHERS:
            return []
        if given:  # it may be a mounted secret, whose mode cannot be changed
            return [
                f"WARNING: {key} = {path}: other users of this machine can read it (mode {permissions:o})"
            ]
        path.chmod(0o600)
    except OSError as error:
        raise SettingsError([f"{key} = {path}: {error.strerror}; or set {env.AUTH_TOKEN}"]) from None
    return [f"{path}: other users could read Ray's token (mode {permissions:o}); its mode is now 600"]


def _create(path: Path) -> None:
    """Write a new token with mode 600 if the file does not exist. No reader sees a part of the token."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, written = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(written, path)
    finally:
        os.unlink(written)


def token_header(address: str) -> dict[str, str]:
    """Return the header for Ray's dashboard at `address`; empty if there is no token for it.

    As with Ray's own commands, a token is sent to another machine only if the environment sets
    `RAY_AUTH_MODE=token` or a token. The token of the default file is always sent to this machine.

    Raises:
        SettingsError: if the file that `RAY_AUTH_TOKEN_PATH` names cannot be read.
    """
    mode = os.environ.get(env.AUTH_MODE, "").lower()
    required = mode == "token" or env.AUTH_TOKEN in os.environ or env.AUTH_TOKEN_PATH in os.environ
    if mode == "disabled" or not (required or is_loopback(urlsplit(address).hostname or "")):
        return {}
    # Imported here, because Ray takes a second to import. Ray's stub lacks the class.
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # noqa: PLC0415
    from ray.exceptions import AuthenticationError  # noqa: PLC0415

    loader = AuthenticationTokenLoader.instance()
    loader.reset_cache()  # the cache is also that of Ray's own connections of this process
    try:
        header: dict[str, str] = loader.get_token_for_http_header(ignore_auth_mode=True)
    except AuthenticationError as error:
        raise SettingsError([f"Ray's token: {error}"]) from None
    finally:
        loader.reset_cache()
    return header
