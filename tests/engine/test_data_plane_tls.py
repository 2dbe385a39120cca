"""The data plane where Ray's own connections have TLS: real certificates, a real handshake."""

import asyncio
import ssl
from pathlib import Path

import pytest

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.engine import data_plane
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress.engine_channel import EngineChannel, NeverBegunError
from serve_app.wire.data_plane import VERSION, Hello
from serve_app.wire.frames import Frames
from tests.certificates import Authority
from tests.stub_engine import LIMIT_S, StubEngine


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
async def test_peers_without_the_right_certificate_are_refused(
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


async def test_a_caller_that_begins_no_handshake_is_cut_off(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_plane, "HELLO_S", 0.01)
    set_all(monkeypatch, authority.variables())
    plane = DataPlane(StubEngine(EngineReply(200, b"{}")))
    await plane.start("127.0.0.1")
    async with asyncio.timeout(LIMIT_S):
        host, _, number = plane.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        assert await reader.read() == b""
        writer.close()
        await plane.stop()
