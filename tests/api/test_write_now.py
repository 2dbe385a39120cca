import pickle

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serve_app.api.write_now import WriteNow, WriteNowMiddleware, write_now


async def receive() -> Message:
    raise AssertionError("nothing reads the request here")


async def offered(send: Send) -> WriteNow | None:
    """What an application finds in its scope."""
    found: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope)

    await WriteNowMiddleware(app)({"type": "http", "headers": []}, receive, send)
    return write_now(found[0])


async def test_a_server_other_than_uvicorns_offers_nothing() -> None:
    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent here")

    assert await offered(send) is None
    assert write_now({"type": "http", "extensions": {}}) is None


def test_in_another_process_it_is_nothing() -> None:
    cycle = RequestResponseCycle.__new__(RequestResponseCycle)
    cycle.flow = cycle.transport = None  # type: ignore[assignment]

    assert pickle.loads(pickle.dumps({"extensions": {"tideserve.write_now": WriteNow(cycle)}})) == {
        "extensions": {"tideserve.write_now": None}
    }
