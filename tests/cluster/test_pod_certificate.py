"""Certificates of pods: two processes accept each other's, and a wrong authority is refused."""

import multiprocessing
import os
import re
import socket
import ssl
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from serve_app.cluster.pod_certificate import main
from serve_app.wire.tls import client_tls, server_tls

_AUTHORITY = "openssl req -x509 -newkey {} -nodes -days 3650 -subj /CN=tideserve -keyout ca.key -out ca.crt"
_KEYS = ("ec -pkeyopt ec_paramgen_curve:prime256v1", "rsa:2048")


def authority(folder: Path, key: str = _KEYS[0]) -> Path:
    """Return a folder with an authority made by the command of the documents."""
    folder.mkdir()
    subprocess.run(_AUTHORITY.format(key).split(), cwd=folder, check=True, capture_output=True)
    return folder


def pod(ca: Path, folder: Path, *names: str) -> dict[str, str]:
    """Return Ray's variables in a pod whose init container has run, twice as after a restart."""
    folder.mkdir()
    given = ["--ca", str(ca), "--out", str(folder), "--addresses", "127.0.0.2,::1"]
    for name in names:
        given += ["--name", name]
    assert [main(given), main(given)] == [0, 0]
    files = {"SERVER_CERT": "tls.crt", "SERVER_KEY": "tls.key", "CA_CERT": "ca.crt"}
    return {"RAY_USE_TLS": "1", **{f"RAY_TLS_{name}": str(folder / file) for name, file in files.items()}}


def serve(variables: dict[str, str], ready: Connection) -> None:
    """Answer one connection with the number of this process; refused handshakes end it too."""
    context = server_tls(variables)
    assert context is not None
    with socket.create_server(("127.0.0.2", 0)) as listening:
        ready.send(listening.getsockname())
        connection, _ = listening.accept()
        try:
            with context.wrap_socket(connection, server_side=True) as encrypted:
                encrypted.sendall(str(os.getpid()).encode())
        except (ssl.SSLError, OSError):
            connection.close()


def ask(server: dict[str, str], client: dict[str, str], name: str) -> bool:
    """Whether a client that calls the server `name` gets its answer from the other process."""
    ready, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(server, theirs), daemon=True)
    process.start()
    context = client_tls(client)
    assert context is not None
    try:
        assert ready.poll(30)
        with socket.create_connection(ready.recv(), timeout=10) as plain:
            with context.wrap_socket(plain, server_hostname=name) as encrypted:
                return encrypted.recv(16) == str(process.pid).encode()
    except (ssl.SSLError, ConnectionError):
        return False
    finally:
        process.join(10)
        process.kill()


@pytest.mark.parametrize("key", _KEYS, ids=["ec", "rsa"])
def test_pods_of_one_authority_accept_each_other(tmp_path: Path, key: str) -> None:
    ca = authority(tmp_path / "ca", key)
    head, worker = pod(ca, tmp_path / "head", "head.llm.svc"), pod(ca, tmp_path / "worker")

    assert ask(head, worker, "127.0.0.2")
    assert ask(head, worker, "head.llm.svc")
    assert not ask(worker, head, "head.llm.svc")  # only the head has the name of its Service
    assert Path(head["RAY_TLS_SERVER_KEY"]).stat().st_mode & 0o077 == 0


def test_pods_of_two_authorities_refuse_each_other(tmp_path: Path) -> None:
    ours = pod(authority(tmp_path / "ca"), tmp_path / "ours")
    theirs = pod(authority(tmp_path / "other"), tmp_path / "theirs")

    assert not ask(ours, theirs, "127.0.0.2")
    assert not ask(ours, {**theirs, "RAY_TLS_CA_CERT": ours["RAY_TLS_CA_CERT"]}, "127.0.0.2")


@pytest.mark.parametrize(
    ("file", "text", "address", "reason"),
    [
        ("ca.crt", None, "127.0.0.2", "no certificate for this pod: .*No such file.*ca.crt"),
        ("ca.key", "nonsense", "127.0.0.2", "no certificate for this pod: .*PEM"),
        ("ca.key", "other", "127.0.0.2", "refuse each other at 127.0.0.2"),
        ("ca.crt", "leaf", "127.0.0.2", "refuse each other at 127.0.0.2"),
        (None, None, "$(POD_IPS)", "does not appear to be an IPv4 or IPv6 address"),
    ],
)
def test_a_useless_authority_is_refused_with_the_reason(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str | None,
    text: str | None,
    address: str,
    reason: str,
) -> None:
    ca = authority(tmp_path / "ca")
    if text == "other":
        (ca / "ca.key").write_bytes((authority(tmp_path / "other") / "ca.key").read_bytes())
    elif text == "leaf":  # a certificate that may not sign others
        leaf = pod(ca, tmp_path / "leaf")
        (ca / "ca.crt").write_bytes(Path(leaf["RAY_TLS_SERVER_CERT"]).read_bytes())
        (ca / "ca.key").write_bytes(Path(leaf["RAY_TLS_SERVER_KEY"]).read_bytes())
    elif file and text:
        (ca / file).write_text(text)
    elif file:
        (ca / file).unlink()

    assert main(["--ca", str(ca), "--out", str(tmp_path), "--addresses", address]) == 1
    assert re.search(reason, capsys.readouterr().err)
