"""TLS of the data plane: it is used if Ray's own connections use it, with the same files.

Ray reads `RAY_USE_TLS`, `RAY_TLS_SERVER_CERT`, `RAY_TLS_SERVER_KEY` and `RAY_TLS_CA_CERT` on every node
(docs.ray.io, "TLS authentication"). As with Ray, each end shows its certificate, and the server's certificate
must name the address that clients connect to.
"""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_SWITCH = "RAY_USE_TLS"
_CERTIFICATE, _KEY, _AUTHORITY = "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"


def server_tls(variables: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the context of a listening engine replica; None without TLS. Raises as `client_tls` does."""
    return _context(variables, ssl.Purpose.CLIENT_AUTH)


def client_tls(variables: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the context of a connecting ingress replica; None without TLS.

    Raises:
        OSError: a variable is missing, or its file is not readable or not a certificate or key. The message
            names the variable.
    """
    return _context(variables, ssl.Purpose.SERVER_AUTH)


def check_tls(variables: Mapping[str, str], address: str) -> None:
    """Check that two processes on the node with this address would accept each other's certificates.

    Does nothing without TLS. With wrong files, the GCS of Ray 2.60 crashes without a message.

    Raises:
        OSError: they would not, or `client_tls` raises. The message names the reason and the variables.
    """
    accepting, connecting = server_tls(variables), client_tls(variables)
    if accepting is None or connecting is None:
        return
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = connecting.wrap_bio(back, there, server_hostname=address)
    server = accepting.wrap_bio(there, back, server_side=True)
    try:
        for end in (client, server, client, server):  # one turn for each message of the handshake
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error
        raise OSError(
            f"{_CERTIFICATE} = {variables[_CERTIFICATE]}, {_AUTHORITY} = {variables[_AUTHORITY]}: the node's "
            f"own processes would refuse each other at {address}: {reason}"
        ) from error


def _context(variables: Mapping[str, str], purpose: ssl.Purpose) -> ssl.SSLContext | None:
    if variables.get(_SWITCH, "0").lower() not in ("1", "true"):
        return None
    certificate, key, authority = (_file(variables, name) for name in (_CERTIFICATE, _KEY, _AUTHORITY))
    try:
        context = ssl.create_default_context(purpose, cafile=authority)
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise OSError(
            f"{_CERTIFICATE} = {certificate}, {_KEY} = {key}, {_AUTHORITY} = {authority}: not a certificate, "
            f"its key and a certificate of an authority: {error}"
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _file(variables: Mapping[str, str], name: str) -> str:
    path = variables.get(name, "")
    if not Path(path).is_file():
        raise OSError(f"{name} = {path!r}: no such file; {_SWITCH} is set")
    return path
