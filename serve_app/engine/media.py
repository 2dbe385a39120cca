"""Images, audio and video that prompts name by URL: only from the hosts that the settings allow.

vLLM fetches from any host unless a list names some, and then from any address of such a host. A client could
make an engine replica call services that only the replica can reach, such as a cloud's metadata.
"""

import socket
from collections.abc import Iterator
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

from serve_app.api.errors import ApiError
from serve_app.settings.settings_error import shown

_SETTING = "allowed_media_domains"
_MOST_CHARACTERS = 8192
_NAT64 = ip_network("64:ff9b::/96")


class _Messages(msgspec.Struct):
    messages: Any = None


_messages = msgspec.json.Decoder(_Messages)


def check_media(body: bytes, config: ModelConfig) -> None:
    """Refuse a body whose messages name media that would not be fetched, before anything is.

    Raises:
        ApiError: 400 with the field, its value and the setting.
    """
    if b"_url" not in body:  # whatever is written otherwise meets `GuardedConnector`
        return
    try:
        messages = _messages.decode(body).messages
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # for the handler to refuse
    for field, url in _urls(messages):
        if problem := _problem(url, config.allowed_media_domains, config.allowed_local_media_path):
            raise ApiError(400, f"{field} = {shown(url)}: {problem}", param=field, code="invalid_value")


class GuardedConnector(MediaConnector):  # type: ignore[misc]  # vLLM has no types
    """vLLM's connector, which fetches from allowed hosts alone and connects to no private address."""

    async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """As vLLM's. Raises VLLMValidationError for what is not allowed, and for what cannot be fetched."""
        self._check(url)
        if url[:4].lower() != "http":
            return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)
        # A proxy of the environment would resolve the name again, so none is used.
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
        """As vLLM's, for what needs no network: only the other way is guarded."""
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
        """The URL as aiohttp reads it, and every URL that it is redirected to."""
        self._check(str(request.url))
        return await handler(request)


class _Connection(HTTPConnection):  # type: ignore[misc]
    """vLLM's, with a client of ours."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        super().__init__()
        self._client = client

    async def get_async_client(self) -> aiohttp.ClientSession:
        return self._client


def guard_media() -> None:
    """Have vLLM's handlers in this process load media by `GuardedConnector`."""
    MEDIA_CONNECTOR_REGISTRY.register("http")(GuardedConnector)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether `address` is one host's on the internet."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = IPv4Address(address.packed[-4:])
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


def _public_socket(info: tuple[Any, ...]) -> socket.socket:
    """Make the socket for an address that is about to be connected to. Every name is resolved by now."""
    family, kind, protocol, _, address = info
    if not is_public(ip_address(address[0])):
        raise _invalid(f"the host of a media URL has the address {address[0]}, which is not public")
    return socket.socket(family, kind, protocol)


def _urls(messages: Any) -> Iterator[tuple[str, str]]:
    """The URLs in the parts of messages, each with its field."""
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for index, part in enumerate(content if isinstance(content, list) else ()):
            for name, value in part.items() if isinstance(part, dict) else ():
                nested = isinstance(value, dict)
                url = value.get("url") if nested else value
                if name.endswith("_url") and isinstance(url, str):
                    yield f"messages[{number}].content[{index}].{name}{'.url' if nested else ''}", url


def _problem(url: str, hosts: list[str] | None, folder: Any) -> str:
    """Why `url` is not to be loaded; "" if it may be."""
    if url[:5].lower() == "data:":
        return ""
    if len(url) > _MOST_CHARACTERS:  # Python keeps the last 128 that it has split
        return f"has {len(url)} characters; at most {_MOST_CHARACTERS} are accepted, but for a data: URL"
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        return f"not a URL: {error}"
    if parts.scheme == "file" and folder:  # within which vLLM keeps it
        return ""
    if parts.scheme not in ("http", "https"):
        return "must be a data: URL, or one with http: or https: of an allowed host"
    if host in (hosts or ()):
        return ""
    names = ", ".join(hosts or ()) or "none"
    return f"media is fetched only from the hosts that the server's setting {_SETTING} allows: {names}"


def _invalid(message: str) -> VLLMValidationError:
    return VLLMValidationError(message, parameter="messages")
