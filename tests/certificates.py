"""Certificates as an operator makes them for Ray's TLS."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class Authority:
    """Signs certificates and writes the three files that Ray wants."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign(name("authority"), self._key, x509.BasicConstraints(True, None))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *more: x509.ExtensionType
    ) -> x509.Certificate:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(name("authority"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(NOW - datetime.timedelta(days=1))
        builder = builder.not_valid_after(NOW + datetime.timedelta(days=1))
        for extension in more:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())

    def variables(self, address: str = "127.0.0.1") -> dict[str, str]:
        """Ray's variables on a node with this address."""
        key = ec.generate_private_key(ec.SECP256R1())
        at = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        pem = serialization.Encoding.PEM
        written = {
            "RAY_TLS_SERVER_CERT": self._sign(name("node"), key, at).public_bytes(pem),
            "RAY_TLS_SERVER_KEY": key.private_bytes(
                pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            "RAY_TLS_CA_CERT": self._certificate.public_bytes(pem),
        }
        for variable, data in written.items():
            (self._folder / f"{address}-{variable}").write_bytes(data)
        paths = {variable: str(self._folder / f"{address}-{variable}") for variable in written}
        return {"RAY_USE_TLS": "1", **paths}
