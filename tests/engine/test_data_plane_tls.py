"""The data plane where Ray's own connections have TLS: real certificates, a real handshake."""

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress.engine_channel import EngineChannel, NeverBegunError
from serve_app.wire.data_plane import VERSION, Hello
from serve_app.wire.frames import Frames
from tests.stub_engine import LIMIT_S, StubEngine

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


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)


async def test_both_ends_speak_tls_where_ray_does(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, authority.variables())
    plane = DataPlane(StubEngine(EngineReply(200, b'{"ok":1}')))
    await plane.start("127.0.0.1")
    async with asyncio.timeout(LIMIT_S):
        channel = await EngineChannel.connect(plane.address, plane.token, LIMIT_S)
        answer = await channel.call(EngineRequest("completions", b"{}", "r-1"), b"{}").answer()
        transport = channel._frames._transport
        assert transport is not None
        assert transport.get_extra_info("cipher")
        channel.close()
        await plane.stop()

    assert (answer.status, answer.body) == (200, b'{"ok":1}')


@pytest.mark.parametrize("fault", ["no TLS", "another authority", "another address"])
async def test_a_caller_or_a_replica_without_the_right_certificate_is_refused(
    authority: Authority, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = StubEngine(EngineReply(200, b"{}"))
    set_all(monkeypatch, authority.variables("127.0.0.2" if fault == "another address" else "127.0.0.1"))
    plane = DataPlane(engine)
    await plane.start("127.0.0.1")
    if fault == "no TLS":
        monkeypatch.setenv("RAY_USE_TLS", "0")
    elif fault == "another authority":
        set_all(monkeypatch, Authority(tmp_path / "theirs").variables())
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(NeverBegunError):
            await EngineChannel.connect(plane.address, plane.token, 1.0)
        await plane.stop()

    assert engine.requests == []


async def test_a_caller_that_shows_no_certificate_is_refused(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, authority.variables())
    plane = DataPlane(StubEngine(EngineReply(200, b"{}")))
    await plane.start("127.0.0.1")
    context = ssl.create_default_context(cafile=authority.variables()["RAY_TLS_CA_CERT"])
    ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    heard: list[object] = []
    caller: Frames[object] = Frames(object, heard.append, ended.set_result)
    host, port = plane.address.split(":")
    async with asyncio.timeout(LIMIT_S):
        # In TLS 1.3 the client takes the handshake for done before the server has seen its certificate.
        await asyncio.get_running_loop().create_connection(lambda: caller, host, int(port), ssl=context)
        caller.send(Hello(VERSION, plane.token))
        await ended
        await plane.stop()

    assert heard == []


@pytest.mark.parametrize("variable", ["RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"])
@pytest.mark.parametrize("wrong", ["", "missing.pem", "text.pem"])
async def test_a_file_that_is_not_right_is_named(
    authority: Authority, tmp_path: Path, variable: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    path = str(tmp_path / wrong) if wrong else ""
    set_all(monkeypatch, {**authority.variables(), variable: path})

    with pytest.raises(OSError, match=variable):
        await DataPlane(StubEngine(EngineReply(200, b"{}"))).start("127.0.0.1")
