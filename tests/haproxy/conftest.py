import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray.serve._private.haproxy as ray_haproxy

from serve_app.haproxy.environment import write_launcher
from tests.haproxy.proxy import Proxy, holders_of, own_address, replica, shorten


class ImpatientAsyncio:
    """asyncio, but Ray looks every 20 ms whether HAProxy is up, instead of every 0.5 s."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.02))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of one HAProxy, no process of which is left behind, whatever comes of the test."""
    monkeypatch.setattr(ray_haproxy, "RAY_SERVE_HAPROXY_BINARY_PATH", str(write_launcher(tmp_path)))
    monkeypatch.setattr(ray_haproxy, "asyncio", ImpatientAsyncio())
    shorten(tmp_path, "configuration", "_GRACE_S", 3)
    yield tmp_path
    for pid in holders_of(tmp_path):
        with suppress(ProcessLookupError):  # it was about to end by itself
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def proxy(folder: Path) -> AsyncIterator[Proxy]:
    async with Proxy(folder) as started:
        yield started


@pytest.fixture
async def serving(proxy: Proxy) -> AsyncIterator[Proxy]:
    """A proxy that knows a replica, which answers."""
    with replica() as port:
        await proxy.deploy(port)
        await proxy.until("/", 200)
        yield proxy


@pytest.fixture
def other_address() -> str:
    """An address of this machine that is not a loopback one."""
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback ones")
    return address
