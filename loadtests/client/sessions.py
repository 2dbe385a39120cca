"""The HTTP session that all requests of a client process share."""

from __future__ import annotations

import resource

import aiohttp

from loadtests.client.arrival import TappedConnector
from loadtests.client.target import Target
from serve_app.cli.proxy import proxy_for

_KEEP_ALIVE_S = 3.0
"""Idle connections are reused for so long: less than any common server keeps them (uvicorn: 5 s), since a
request on a connection that is just being closed fails."""
_DNS_S = 300.0
_OPEN_FILES = 2**20
"""Asked for where the system sets no limit."""


def allow_many_connections() -> int:
    """Raise the soft limit of open files to the hard one; the limit then. Each stream needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def open_session(target: Target) -> aiohttp.ClientSession:
    """Without limits of its own on connections, and without timeouts: requests have their own."""
    headers = {
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",  # A compressed stream would arrive in blocks.
        "Content-Type": "application/json",
        "User-Agent": "tideserve-loadtest",
        **target.headers,
    }
    return aiohttp.ClientSession(
        connector=TappedConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=int(_DNS_S)),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        proxy=proxy_for(target.url),
    )
