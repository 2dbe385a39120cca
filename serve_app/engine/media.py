"""Images, audio and video that prompts name by URL or by `uuid`.

URLs may have only the hosts that the settings allow. By default vLLM fetches from any host, and from any
address of an allowed host. A client could make an engine replica call services that only the replica can
reach, such as a cloud's metadata service.
"""

import hmac
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from vllm.config import ModelConfig
from vllm.connections import HTTPConnection
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector

from serve_app.api.body import DOCUMENTS, QUERIES
from serve_app.api.errors import NOT_JSON, invalid_value
from serve_app.patches.vllm import Method, wrap_method
from serve_app.settings.settings_error import shown

_SETTING = "allowed_media_domains"
_MOST_CHARACTERS = 8192
_NAT64 = ip_network("64:ff9b::/96")
INPUTS = ("input", *QUERIES, *DOCUMENTS)
"""The fields of bodies of pooling models that hold inputs."""


def reader_of(*names: str) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that reads these fields of a JSON object, if they are given, and skips all others."""
    decoder = msgspec.json.Decoder(msgspec.defstruct("Fields", [(name, Any, None) for name in names]))

    def read(body: bytes) -> dict[str, Any]:
        found = msgspec.structs.asdict(decoder.decode(body))
        return {name: value for name, value in found.items() if value is not None}

    return read


_read_prompts = reader_of("messages", *INPUTS)


def check_media(body: bytes, config: ModelConfig) -> None:
    """Refuse a body whose messages name media that are not allowed, before any media is fetched.

    Raises:
        ApiError: 400 with the field, its value and the setting.
    """
    if b"_url" not in body and b'"source"' not in body:  # `GuardedConnector` checks an escaped key
        return
    try:
        urls = [each for name, value in _read_prompts(body).items() for each in _urls(name, value)]
    except NOT_JSON:
        return  # the handler will refuse it
    for field, url in urls:
        if problem := _problem(url, config.allowed_media_domains, config.allowed_local_media_path):
            raise invalid_value(field, url, problem)


class GuardedConnector(MediaConnector):  # type: ignore[misc]  # vLLM has no types
    """vLLM's connector, restricted to allowed hosts and public addresses."""

    async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """Load media as vLLM does. Raises VLLMValidationError for a URL that is not allowed or fails."""
        self._check(url)
        if url[:4].lower() != "http":
            try:
                return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)
            except ValueError as error:
                raise _invalid(f"{shown(url)}: {error}") from error
        # No proxy of the environment is used, because a proxy would resolve the name again.
        connector = aiohttp.TCPConnector(socket_factory=_public_socket, happy_eyeballs_delay=None)
        async with aiohttp.ClientSession(connector=connector, middlewares=(self._check_hop,)) as client:
            fetching = copy(self)
            fetching.connection = _Connection(client)
            try:
                return await MediaConnector.load_from_url_async(
                    fetching, url, media_io, fetch_timeout=fetch_timeout
                )
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
                raise _invalid(f"{shown(url)}: could not be fetched: {reason}") from error

    def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """Load media as vLLM does, but without the network: only the asynchronous method is guarded."""
        self._check(url)
        if url[:4].lower() == "http":
            raise _invalid(f"{shown(url)}: this engine fetches media asynchronously only")
        return super().load_from_url(url, media_io, fetch_timeout=fetch_timeout)

    def _check(self, url: str) -> None:
        if problem := _problem(url, self.allowed_media_domains, self.allowed_local_media_path):
            raise _invalid(f"{shown(url)}: {problem}")

    async def _check_hop(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Check the URL as aiohttp parses it, and the URL of every redirect."""
        self._check(str(request.url))
        return await handler(request)


class _Connection(HTTPConnection):  # type: ignore[misc]
    """vLLM's connection with the given client."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        super().__init__()
        self._client = client

    async def get_async_client(self) -> aiohttp.ClientSession:
        return self._client


def guard_media() -> None:
    """Have vLLM's handlers in this process load media with `GuardedConnector`."""
    MEDIA_CONNECTOR_REGISTRY.register("http")(GuardedConnector)


def keyed(key: str, name: str) -> str:
    """Return a name of 64 characters that stands for `name` with this `key` only."""
    return hmac.new(key.encode(), name.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def keep_media_apart(renderer: Any) -> None:
    """Have vLLM's `renderer` keep the media of each cache salt apart.

    vLLM keeps media by the `uuid` that a client gives them, and shows them for any later part with this
    `uuid`. Clients of two API keys may choose the same `uuid`.
    """

    def salted(process: Method) -> Method:
        def wrapped(prompt: Any, **kwargs: Any) -> Any:
            salt, uuids = prompt.get("cache_salt"), prompt.get("multi_modal_uuids")
            if salt and uuids:
                prompt["multi_modal_uuids"] = {
                    modality: [None if name is None else keyed(salt, name) for name in names]
                    for modality, names in uuids.items()
                }
            return process(prompt, **kwargs)

        return wrapped

    wrap_method(renderer, "_process_tokens", salted)
    with suppress(AttributeError):  # other releases have only the first
        wrap_method(renderer, "_process_tokens_async", salted)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether `address` is the public address of a single host."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = IPv4Address(address.packed[-4:])
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


def _public_socket(info: tuple[Any, ...]) -> socket.socket:
    """Make the socket for a connection. The address is resolved, so a name cannot change it."""
    family, kind, protocol, _, address = info
    if not is_public(ip_address(address[0])):
        raise _invalid(f"the host of a media URL has the address {address[0]}, which is not public")
    return socket.socket(family, kind, protocol)


def _urls(path: str, value: Any, is_part: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the URLs in messages, in the parts of their contents and of tools' results, with their paths."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _urls(f"{path}[{index}]", item, is_part)
    elif isinstance(value, dict):
        for name, item in value.items():
            nested = isinstance(item, dict)
            url = item.get("url") if nested else item
            is_url = isinstance(url, str) and (name.endswith("_url") or (nested and name == "source"))
            if is_part and is_url:
                yield f"{path}.{name}{'.url' if nested else ''}", url
            elif name in ("content", "output"):
                yield from _urls(f"{path}.{name}", item, is_part=True)


def _problem(url: str, hosts: list[str] | None, folder: Any) -> str:
    """Return why `url` must not be loaded; "" if it may be loaded."""
    if url[:5].lower() == "data:":
        return ""
    if len(url) > _MOST_CHARACTERS:  # `urlsplit` caches its last 128 URLs
        return f"has {len(url)} characters; at most {_MOST_CHARACTERS} are accepted, but for a data: URL"
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        return f"not a URL: {error}"
    if parts.scheme == "file" and folder:  # vLLM checks that the path is within `folder`
        return ""
    if parts.scheme not in ("http", "https"):
        return "must be a data: URL, or one with http: or https: of an allowed host"
    if host in (hosts or ()):
        return ""
    names = ", ".join(hosts or ()) or "none"
    return f"media is fetched only from the hosts that the server's setting {_SETTING} allows: {names}"


def _invalid(message: str) -> VLLMValidationError:
    return VLLMValidationError(message, parameter="messages")
