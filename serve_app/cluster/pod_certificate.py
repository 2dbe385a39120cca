"""Make the certificate of a pod from the key of an authority. The init container for `rayTls.caSecret`.

    python -m serve_app.cluster.pod_certificate --ca FOLDER --out FOLDER --addresses 10.0.0.7,fd00::7

Ray and the data plane check that a certificate names the address or the host name that they connect to. A pod
knows its address only when it runs, so no certificate can be made before. Needs the `kubernetes` extra.
"""

import argparse
import datetime
import ipaddress
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serve_app.wire.tls import check_tls

_LOCAL_ADDRESSES, _LOCAL_NAMES = ("127.0.0.1",), ("localhost",)
_CLOCK_SKEW = datetime.timedelta(hours=1)


def make_certificate(
    ca: Path, out: Path, addresses: Sequence[str], names: Sequence[str], now: datetime.datetime
) -> dict[str, str]:
    """Write `tls.crt`, `tls.key` and `ca.crt` to `out`, and return Ray's variables for them.

    `ca` has `ca.crt` and `ca.key` (PEM, RSA or elliptic curve, without a password). The certificate is valid
    as long as that of the authority, because nothing renews it while the pod lives.

    Raises:
        ValueError: an address is none, the authority has expired, or a file is not what its name says.
        OSError: a file cannot be read or written, or two pods would refuse each other's certificates. The
            message has the reason.
    """
    authority = x509.load_pem_x509_certificate((ca / "ca.crt").read_bytes())
    signing = serialization.load_pem_private_key((ca / "ca.key").read_bytes(), password=None)
    if not isinstance(signing, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError(f"{ca}/ca.key must be an RSA or elliptic-curve key")
    end = authority.not_valid_after_utc
    if end <= now:
        raise ValueError(f"{ca}/ca.crt expired at {end:%Y-%m-%d %H:%M} UTC")
    places = [*addresses, *_LOCAL_ADDRESSES]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tideserve-pod")])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    alternatives: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(place)) for place in places]
    alternatives += [x509.DNSName(name) for name in (*names, *_LOCAL_NAMES)]
    # Each process is a client of some and a server of others.
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        x509.CertificateBuilder(authority.subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(uses, critical=False)
        .add_extension(issuer, critical=False)
        .sign(signing, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    unlocked = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = {
        "RAY_TLS_SERVER_CERT": (out / "tls.crt", certificate.public_bytes(pem), 0o644),
        "RAY_TLS_SERVER_KEY": (out / "tls.key", unlocked, 0o600),
        "RAY_TLS_CA_CERT": (out / "ca.crt", authority.public_bytes(pem), 0o644),
    }
    for path, data, mode in files.values():
        path.unlink(missing_ok=True)  # of an earlier run of the init container
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    variables = {"RAY_USE_TLS": "1", **{name: str(path) for name, (path, _, _) in files.items()}}
    for place in (*places, *names, *_LOCAL_NAMES):
        check_tls(variables, place)
    return variables


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the certificate. The exit status is 1, with the reason on standard error, if that fails."""
    parser = argparse.ArgumentParser(description="Make the certificate of a pod for Ray's TLS.")
    parser.add_argument("--ca", type=Path, required=True, metavar="FOLDER", help="has ca.crt and ca.key")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="gets the three files")
    parser.add_argument("--addresses", required=True, help="the pod's addresses, separated by commas")
    parser.add_argument("--name", action="append", default=[], help="a host name of the pod; repeatable")
    options = parser.parse_args(arguments)
    addresses = options.addresses.split(",")
    try:
        make_certificate(
            options.ca, options.out, addresses, options.name, datetime.datetime.now(datetime.UTC)
        )
    except (OSError, ValueError) as error:
        print(f"no certificate for this pod: {error}", file=sys.stderr)
        return 1
    print(f"made a certificate for {', '.join([*addresses, *options.name])}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
