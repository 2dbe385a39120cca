"""Why requests failed, in words."""

import aiohttp

from serve_app.cli.http_client import error_words

_REFUSAL_BYTES = 64 * 2**10


async def refusal_words(response: aiohttp.ClientResponse) -> str:
    """The body of an error response in words, with its status. Gives the connection back."""
    data = b""
    while len(data) < _REFUSAL_BYTES and (block := await response.content.readany()):
        data += block
    if not response.content.at_eof():
        response.close()
    words = error_words(data)
    location = response.headers.get("Location")
    if location is not None:
        words = f"redirected to {location}"
    return f"HTTP {response.status}: {words or response.reason or 'without a body'}"


def failure_words(error: Exception) -> str:
    """Why no answer came, or why it broke off."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection before it answered"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
