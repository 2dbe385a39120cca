"""The HTTP client of the commands: API key, proxy, and the text of an error response."""

import ipaddress
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException

from pydantic import BaseModel, ConfigDict, ValidationError

from serve_app import env
from serve_app.cli import CommandError
from serve_app.settings.settings_error import SettingsError, from_pydantic

DEFAULT_URL = "http://127.0.0.1:8000"
"""Where the API is served by default."""

_SHOWN = 500


class NoAnswerError(Exception):
    """No HTTP response came. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response of any status."""

    status: int
    reason: str
    body: bytes
    headers: Mapping[str, str]


def fetch(
    url: str, headers: Mapping[str, str], timeout_s: float, *, body: bytes | None = None, direct: bool = False
) -> Reply:
    """Return the response to a GET, or to a PUT of `body`.

    Redirects of a GET are followed without `headers`, so that no other server gets the key. The timeout
    applies to connecting and to each read. `direct` uses no proxy even if the environment names one.

    Raises:
        NoAnswerError: if the server cannot be reached, or the connection breaks.
    """
    request = urllib.request.Request(url, data=body, method="GET" if body is None else "PUT")  # noqa: S310
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    proxy = None if direct else proxy_for(url)
    proxies = {} if proxy is None else {urllib.parse.urlsplit(url).scheme: proxy}
    try:
        try:
            reply = urllib.request.build_opener(urllib.request.ProxyHandler(proxies)).open(
                request, timeout=timeout_s
            )
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            return Reply(reply.status, reply.reason, reply.read(), reply.headers)
    except (OSError, HTTPException) as error:
        raise NoAnswerError(str(getattr(error, "reason", None) or error)) from None


def ask(url: str, path: str, timeout_s: float, body: bytes | None = None) -> Reply:
    """Return the good answer to a GET of `path` at the server `url`, with the API key of the environment.

    With `body`, a JSON document, it is a PUT.

    Raises:
        CommandError: nothing answers, or the answer is an error.
    """
    try:
        headers = authorization() | ({} if body is None else {"Content-Type": "application/json"})
        reply = fetch(f"{url.rstrip('/')}{path}", headers, timeout_s, body=body)
    except NoAnswerError as error:
        raise CommandError(f"nothing answers at {url}: {error}") from None
    if reply.status >= 300:
        raise CommandError(f"{url} answers {reply.status} {reply.reason}: {error_words(reply.body)}")
    return reply


class Document(BaseModel):
    """A JSON answer. Fields that a newer server adds are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def other_version(error: ValidationError) -> CommandError:
    """Return the error of a command whose `Document` the answer is not."""
    problem = from_pydantic(error).problems[0]
    return CommandError(f"the answer is not one of this version of Tideserve: {problem}")


def url_problem(url: str) -> str:
    """Return what is wrong with a `--url`; "" if nothing is."""
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        login = parts.username is not None
    except ValueError:  # an invalid port or IPv6 address
        good = login = False
    if login:  # messages would show the password, and a request has only one Authorization header
        return f"--url: must not contain a user name or password; the key in {env.API_KEY} is sent"
    return "" if good else f"--url = {url!r}: must be an http(s) URL, such as {DEFAULT_URL}"


def check_url(url: str) -> None:
    """Raise CommandError for a `--url` that cannot be used."""
    if problem := url_problem(url):
        raise CommandError(problem)


def authorization(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the header with the API key of the environment, or no header if there is no key.

    Raises:
        SettingsError: for a key that a header cannot contain. The message does not repeat the key.
    """
    key = environment.get(env.API_KEY, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingsError([f"{env.API_KEY}: must be on one line of printable ASCII without spaces"])
    return {"Authorization": f"Bearer {key}"} if key else {}


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for `url`, or None. A call costs 50 us.

    A loopback URL gets no proxy: a proxy elsewhere could not reach this machine's loopback address.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.hostname is None or is_loopback(parts.hostname) or urllib.request.proxy_bypass(parts.netloc):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address in a URL is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def error_words(body: bytes) -> str:
    """Return an OpenAI error's code and message, or any other body on one line; at most 500 characters."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict) and error.get("message"):
        return f"{error.get('code') or error.get('type') or 'error'}: {error['message']}"[:_SHOWN]
    if isinstance(error, str):
        return error[:_SHOWN]
    return " ".join(body[: 2 * _SHOWN].decode(errors="replace").split())[:_SHOWN]
