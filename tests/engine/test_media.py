"""Media by URL, by vLLM's own parser of messages and its connector, and a server that notes who asks it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from vllm.renderers.chat_utils import AsyncMultiModalContentParser

from serve_app.api.engine_client import Operation
from serve_app.api.errors import ApiError
from serve_app.engine import media
from serve_app.engine.api_errors import from_exception
from serve_app.engine.chat_operations import Serving
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.media import GuardedConnector, check_media, guard_media, is_public
from serve_app.engine.pooling_operations import pool
from serve_app.settings.tree import ModelSettings
from tests.engine.calls import engine_call

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
DATA = "data:image/png;base64," + base64.b64encode(PIXEL).decode()


@dataclass
class Site:
    """A web server on this machine."""

    port: int = 0
    redirect: str = ""
    asked: list[str] = field(default_factory=list)
    connections: int = 0

    def url(self, host: str = "127.0.0.1", path: str = "/a.png") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ")[1].decode())
        if self.redirect and "moved" not in self.asked[-1]:
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {self.redirect}\r\n".encode())
            writer.write(b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nConnection: close\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(PIXEL) + PIXEL)
        writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    server = await asyncio.start_server(made.serve, "0.0.0.0", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = MEDIA_CONNECTOR_REGISTRY.name2class["http"]
    guard_media()
    yield
    MEDIA_CONNECTOR_REGISTRY.register("http")(before)


def connector(*hosts: str, folder: str = "") -> Any:
    """The connector that vLLM's parsers of messages get."""
    return MEDIA_CONNECTOR_REGISTRY.load(
        "http", media_io_kwargs=None, allowed_local_media_path=folder, allowed_media_domains=list(hosts)
    )


@pytest.fixture
def one_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.1 stands for an address of the internet, which no test may need."""
    monkeypatch.setattr(media, "is_public", lambda address: str(address) == "127.0.0.1")


async def refusal(loading: Any) -> ApiError:
    with pytest.raises((VLLMClientError, ValueError)) as caught:
        await loading
    return from_exception(caught.value)


async def test_image_of_allowed_host_is_fetched_through_redirect(
    site: Site, one_public_address: None
) -> None:
    site.redirect = site.url(path="/moved.png")

    image = await connector("127.0.0.1").fetch_image_async(site.url())

    assert image.size == (1, 1)
    assert site.asked == ["/a.png", "/moved.png"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
async def test_allowed_host_with_private_address_is_refused(site: Site, host: str) -> None:
    error = await refusal(connector(host).fetch_image_async(site.url(host)))

    assert (error.status, error.param) == (400, "messages")
    assert "which is not public" in error.message
    assert site.connections == 0


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "0"])
async def test_no_spelling_of_a_private_address_is_connected_to(site: Site, host: str) -> None:
    error = await refusal(connector(host, host.strip("[]")).fetch_image_async(site.url(host)))

    assert error.status in (400, 422)
    assert site.connections == 0


@pytest.mark.parametrize("place", ["http://127.0.0.2:{port}/moved", "http://localhost:{port}/moved"])
async def test_a_redirect_to_a_private_address_is_not_followed(
    site: Site, one_public_address: None, place: str
) -> None:
    site.redirect = place.format(port=site.port)

    error = await refusal(connector("127.0.0.1", "127.0.0.2").fetch_image_async(site.url()))

    assert error.status == 400
    assert site.asked == ["/a.png"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/a.png",
        "HTTP://127.0.0.1:{port}/a.png",
        "http://allowed@127.0.0.1:{port}/a.png",
        "http://127.0.0.1:{port}\\@allowed/a.png",
        "http://allowed.127.0.0.1.nip.io:{port}/",
        "ftp://allowed/a.png",
        "file:///etc/hostname",
        "file://localhost/etc/hostname",
        "/etc/hostname",
        "",
        "http://[",
        "http://allowed/" + "a" * 9000,
    ],
)
@pytest.mark.parametrize("hosts", [(), ("allowed",)])
async def test_nothing_else_is_loaded_in_either_way(site: Site, url: str, hosts: tuple[str, ...]) -> None:
    given = url.format(port=site.port)
    if hosts and given.startswith("http://allowed/"):
        assert "8192" in (await refusal(connector(*hosts).fetch_image_async(given))).message
    loading = connector(*hosts)

    assert (await refusal(loading.fetch_image_async(given))).status == 400
    with pytest.raises(VLLMValidationError, match="parameter=messages"):
        loading.fetch_image(given)
    assert site.connections == 0


async def test_data_urls_need_no_setting() -> None:
    assert (await connector().fetch_image_async(DATA)).size == (1, 1)
    assert connector().fetch_image(DATA.replace("data", "DATA", 1)).size == (1, 1)


async def test_a_file_is_read_where_vllms_argument_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL)
    opened = connector(folder=str(tmp_path))

    assert (await opened.fetch_image_async(f"file://{tmp_path}/a.png")).size == (1, 1)
    assert (await refusal(opened.fetch_image_async("file:///etc/hostname"))).status == 400


async def test_a_host_that_does_not_answer_is_the_clients_error(
    one_public_address: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")

    error = await refusal(connector("127.0.0.1").fetch_image_async("http://127.0.0.1:1/a.png"))

    assert error.status == 400
    assert "could not be fetched" in error.message


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b::808:808", True),
        ("2002:a00:1::", False),
    ],
)
def test_only_addresses_of_the_internet_are_public(address: str, public: bool) -> None:
    assert is_public(ip_address(address)) is public


OUTSIDE = "http://127.0.0.1/a.png"
IMAGE = {"type": "image_url", "image_url": {"url": OUTSIDE}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].image_url.url"),
        ({"documents": {"content": [IMAGE]}}, "documents.content[0].image_url.url"),
        (
            {"messages": [{"content": [{"type": "tool_result", "content": [{"source": {"url": OUTSIDE}}]}]}]},
            "messages[0].content[0].content[0].source.url",
        ),
        ({"input": [{"output": [{"image_url": OUTSIDE}]}]}, "input[0].output[0].image_url"),
        ({"messages": [{"role": "user", "content": "sea", "page_url": OUTSIDE}]}, None),
        ({"documents": [{"text": "sea", "page_url": OUTSIDE}]}, None),
        ({"messages": [{"content": [{"type": "tool_use", "input": {"image_url": OUTSIDE}}]}]}, None),
    ],
)
def test_only_urls_of_parts_are_media(body: dict[str, Any], param: str | None) -> None:
    nothing_allowed: Any = SimpleNamespace(allowed_media_domains=None, allowed_local_media_path="")
    if param is None:
        check_media(json.dumps(body).encode(), nothing_allowed)
        return

    with pytest.raises(ApiError, match="allowed_media_domains") as caught:
        check_media(json.dumps(body).encode(), nothing_allowed)
    assert caught.value.param == param


# The live operations, on vLLM's real handlers.


def named(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "See."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]},
    ]


async def answered(serving: Serving, call: EngineCall) -> Any:
    async with LocalEngine(serving, ModelSettings(name="tide"), lambda _: None).call(call) as reply:
        return reply


PARTS = {
    "image_url.url": {"type": "image_url", "image_url": {"url": "{url}"}},
    "audio_url.url": {"type": "audio_url", "audio_url": {"url": "{url}"}},
    "video_url.url": {"type": "video_url", "video_url": {"url": "{url}"}},
    "image_url": {"type": "input_image", "image_url": "{url}", "detail": "auto"},
    "video_url": {"video_url": "{url}"},
    "image_url.url of a uuid": {"type": "image_url", "image_url": {"url": "{url}"}, "uuid": "a"},
}


@pytest.fixture
def takes_media(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model as one that takes images: one that takes text only refuses every media part."""
    monkeypatch.setattr(type(serving.engine.model_config), "is_multimodal_model", True)


@pytest.mark.usefixtures("takes_media")
@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("operation", ["chat_completions", "tokenize", "embeddings"])
async def test_media_refusal_names_field_and_setting_before_any_fetch(
    serving: Serving, site: Site, operation: Operation, kind: str
) -> None:
    part = json.loads(json.dumps(PARTS[kind]).replace("{url}", site.url()))

    call = engine_call(operation, json.dumps({"messages": named(part)}).encode(), "r-1")

    # The model has no handler of embeddings.
    pooling = Serving(serving.engine, State({"serving_embedding": object()}))
    with pytest.raises(ApiError) as caught:
        await (pool(pooling, call) if operation == "embeddings" else answered(serving, call))

    error = caught.value
    assert (error.status, error.code) == (400, "invalid_value")
    assert error.param == f"messages[1].content[1].{kind.partition(' ')[0]}"
    assert "allowed" in error.message
    assert site.connections == 0


@pytest.mark.usefixtures("takes_media")
@pytest.mark.parametrize(
    ("operation", "body", "param"),
    [
        ("rerank", {"query": {"content": ["PART"]}, "documents": "sea"}, "query.content[0]"),
        ("rerank", {"query": "sea", "documents": ["a", {"content": ["PART"]}]}, "documents[1].content[0]"),
        ("score", {"text_1": "sea", "text_2": [{"content": ["PART"]}]}, "text_2[0].content[0]"),
    ],
)
async def test_media_of_pairs_are_refused_by_their_field(
    serving: Serving, site: Site, operation: Operation, body: dict[str, Any], param: str
) -> None:
    part = json.dumps({"type": "image_url", "image_url": {"url": site.url()}})
    call = engine_call(operation, json.dumps(body).replace('"PART"', part).encode(), "r-1")

    with pytest.raises(ApiError) as caught:
        await pool(Serving(serving.engine, State({"serving_scores": object()})), call)

    assert (caught.value.status, caught.value.param) == (400, f"{param}.image_url.url")
    assert site.connections == 0


async def test_a_disguised_field_meets_the_connector(serving: Serving, site: Site) -> None:
    """The name of the field is written with an escape. A text model refuses any image, and fetches none."""
    part = {"type": "image_url", "image_url": {"url": site.url()}}
    body = json.dumps({"messages": named(part)}).replace('"image_url": {', '"image\\u005furl": {').encode()

    with pytest.raises(ApiError) as caught:
        await answered(serving, engine_call("chat_completions", body, "r-1"))

    assert caught.value.status == 400
    assert site.connections == 0


class Tracker:
    """As much of vLLM's tracker of a prompt's media as its parser of messages uses."""

    media_io_kwargs = None
    allowed_local_media_path = ""
    video_processor_name = None

    def __init__(self, *hosts: str) -> None:
        self.allowed_media_domains = list(hosts)
        self.loads: list[Callable[[], Awaitable[Any]]] = []

    def add(self, modality: str, load: Callable[[], Awaitable[Any]]) -> None:
        self.loads.append(load)


@pytest.mark.parametrize("hosts", [(), ("127.0.0.1",)], ids=["no host", "its host"])
@pytest.mark.parametrize("kind", ["parse_image", "parse_audio", "parse_video"])
async def test_the_parser_of_messages_fetches_nothing_of_this_machine(
    site: Site, kind: str, hosts: tuple[str, ...]
) -> None:
    tracker = Tracker(*hosts)
    getattr(AsyncMultiModalContentParser(tracker), kind)(site.url())

    (load,) = tracker.loads
    assert (await refusal(load())).status == 400
    assert site.connections == 0


async def test_mounted_handlers_load_media_by_the_guarded_connector(serving: Serving) -> None:
    MEDIA_CONNECTOR_REGISTRY.register("http")(MediaConnector)

    await Serving.mount(serving.engine, serving.state.args)

    assert isinstance(connector(), GuardedConnector)
