"""Who may call the data plane: the token, and certificates where Ray's own connections have TLS."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.engine import data_plane
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress.engine_channel import EngineChannel, NeverBegunError
from serve_app.wire.data_plane import (
    GREETING_BYTES,
    HELLO_BYTES,
    LENGTH,
    MOST_STRANGERS,
    VERSION,
    Credit,
    FromIngress,
    Hello,
)
from serve_app.wire.frames import Frames
from tests.certificates import Authority
from tests.engine.data_plane_port import FakeIngress, listening
from tests.stub_engine import LIMIT_S, StubEngine


@pytest.mark.parametrize("token", ["", "wrong", "ünknown", "0" * 64])
async def test_a_stranger_is_refused_before_anything_else(token: str) -> None:
    engine = StubEngine(EngineReply(200))

    async with listening(engine) as port:
        with pytest.raises(NeverBegunError, match="token is missing or wrong"):
            await EngineChannel.connect(port.plane.address, token, LIMIT_S)

    assert engine.requests == []


OTHER_VERSION = f"this engine replica speaks version {VERSION} of the data plane"


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        (LENGTH.pack(HELLO_BYTES + 1), ""),
        (b"GET / HTTP/1.1\r\n\r\n", ""),
        (Hello(VERSION + 1, "its token"), OTHER_VERSION),
        (Credit(0, 1), OTHER_VERSION),
        (Hello(VERSION, "wrong"), "the data-plane token is missing or wrong"),
        (None, "no data-plane token within 0.01 s"),
    ],
    ids=["long frame", "HTTP", "other version", "no hello", "wrong token", "silence"],
)
async def test_caller_without_the_token_is_refused_once(
    opening: bytes | FromIngress | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if opening is None:
        monkeypatch.setattr(data_plane, "HELLO_S", 0.01)
    async with listening(StubEngine(EngineReply(200))) as port:
        async with FakeIngress(port.plane) as caller:
            if isinstance(opening, bytes):
                caller.writer.write(opening)
            elif opening is not None:
                caller.send(*[opening] * 1000)
            # The peer may reset the connection while it still sends.
            assert await caller.refusal() in (reason, "" if opening is not None else reason)

        await port.call(body=b"x" * (1 << 20)).answer()  # a caller with the token sends what it likes
        for _ in range(20):
            with pytest.raises(NeverBegunError):
                await EngineChannel.connect(port.plane.address, "wrong", LIMIT_S)

    (line,) = [record.message for record in caplog.records if "refused a caller" in record.message]
    assert line.startswith("data plane: refused a caller from ('127.0.0.1', ")
    assert line.endswith("(1 refused since the last such line)")
    assert reason in line


async def test_strangers_beyond_the_bound_take_the_place_of_the_oldest() -> None:
    async with listening(StubEngine(EngineReply(200))) as port, AsyncExitStack() as stack:
        others = [await stack.enter_async_context(FakeIngress(port.plane)) for _ in range(MOST_STRANGERS + 2)]
        for other in others[:2]:
            reason = f"more than {MOST_STRANGERS} connections without the data-plane token"
            assert await other.refusal() == reason
        channel = await EngineChannel.connect(port.plane.address, port.plane.token, LIMIT_S)
        await channel.call(EngineRequest("completions", b"{}", "r-2"), b"{}").answer()
        channel.close()


async def test_an_ingress_reads_no_long_frame_before_the_greeting() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LENGTH.pack(GREETING_BYTES + 1))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    host, number = server.sockets[0].getsockname()
    with pytest.raises(NeverBegunError, match=f"a frame of {GREETING_BYTES + 1} bytes"):
        await EngineChannel.connect(f"{host}:{number}", "token", LIMIT_S)
    server.close()


# With TLS.


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
    async with listening(StubEngine(EngineReply(200, b'{"ok":1}'))) as port:
        answer = await port.answer()
        async with FakeIngress(port.plane) as plain:
            plain.send(Hello(VERSION, port.plane.token))
            assert await plain.refusal() == ""  # the port reads nothing without TLS

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
