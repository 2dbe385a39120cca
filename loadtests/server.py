"""What a scenario needs to know of a server before its first request. It wakes no model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from loadtests.planned import Planned

_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
_SHOWN = 300


class ServerError(Exception):
    """A server that cannot be tested. One sentence for the user, with what to do about it."""


@dataclass(frozen=True, slots=True)
class Served:
    """The models of a server, with their context lengths where it tells them, and its version."""

    context: Mapping[str, int | None]
    version: str = ""


async def served(session: aiohttp.ClientSession, url: str) -> Served:
    """Ask `url` what it serves.

    Raises ServerError if nothing answers there, or not as the OpenAI API does.
    """
    document = await _json(session, f"{url}/v1/models")
    try:
        models = {str(model["id"]): _length(model.get("max_model_len")) for model in document["data"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ServerError(f"{url}/v1/models answers, but not as the OpenAI API does") from None
    if not models:
        raise ServerError(f"{url}/v1/models lists no model")
    return Served(models, await _version(session, url))


def choose_model(found: Served, given: str | None) -> str:
    """The model of requests that name none.

    Raises ServerError if it is not served, or several are and none is given.
    """
    known = ", ".join(found.context)
    if given is None:
        if len(found.context) > 1:
            raise ServerError(f"several models are served: give --model, one of {known}")
        return next(iter(found.context))
    if given not in found.context:
        raise ServerError(f"--model = {given!r}: not served; there are {known}")
    return given


def check_plan(planned: Sequence[Planned], found: Served, default: str) -> None:
    """Find out before the run what the server would refuse in its middle.

    Raises ServerError for a model that is not served, or a request longer than its model's context.
    """
    longest: dict[tuple[str, str], Planned] = {}
    for request in planned:
        key = request.kind, request.model or default
        known = longest.get(key)
        if known is None or _tokens(request) > _tokens(known):
            longest[key] = request
    for (kind, model), request in longest.items():
        if model not in found.context:
            raise ServerError(
                f"requests of kind {kind!r}: model = {model!r} is not served; "
                f"there are {', '.join(found.context)}"
            )
        context = found.context[model]
        if context is not None and _tokens(request) > context:
            raise ServerError(
                f"requests of kind {kind!r}: {request.prompt_tokens} tokens of a prompt and "
                f"{request.output_tokens} of its answer exceed max_model_len = {context} of {model}"
            )


def _tokens(request: Planned) -> int:
    return request.prompt_tokens + request.output_tokens


def _length(value: Any) -> int | None:
    return None if value is None else int(value)


async def _version(session: aiohttp.ClientSession, url: str) -> str:
    try:
        info = (await _json(session, f"{url}/openapi.json"))["info"]
        return f"{info['title']} {info['version']}"
    except (ServerError, KeyError, TypeError):
        return ""  # a gateway may hide it; nothing but the report's footer misses it


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    try:
        # The requests would not follow a redirect: each would be two, and timed as one.
        async with session.get(url, timeout=_TIMEOUT, allow_redirects=False) as reply:
            text = (await reply.read()).decode(errors="replace")
            if "Location" in reply.headers:
                raise ServerError(f"{url} redirects to {reply.headers['Location']}; give --url accordingly")
            if reply.status != 200:
                raise ServerError(f"{url} answers {reply.status}: {' '.join(text.split())[:_SHOWN]}")
            return json.loads(text)
    except (aiohttp.ClientError, OSError) as error:
        raise ServerError(f"nothing answers at {url}: {error or type(error).__name__}") from None
    except (ValueError, RecursionError):
        raise ServerError(f"{url} answers, but not with JSON") from None
