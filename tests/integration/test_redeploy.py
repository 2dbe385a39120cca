"""A redeploy of the only ingress replica, while clients begin streams."""

import asyncio
import copy

import aiohttp
import pytest

from tests.integration.cluster import START_TIMEOUT_S, Running
from tests.integration.conftest import CHAT

CLIENTS = 4
BODY = {"model": CHAT, "messages": [{"role": "user", "content": "sea"}], "max_tokens": 8, "stream": True}


def ingresses(app: Running) -> set[int]:
    return {process.pid for process in app.processes("ray::ServeReplica:tideserve:Ingress")}


@pytest.mark.long
async def test_redeploy_with_one_ingress_replica_refuses_no_stream(app: Running) -> None:
    before = ingresses(app)
    assert len(before) == 1
    document = copy.deepcopy(app.document)
    document["applications"][0]["args"]["ingress"]["max_ongoing_requests"] = 150
    ended = asyncio.Event()
    answers: list[str] = []

    async def client(http: aiohttp.ClientSession) -> None:
        while not ended.is_set():
            # A connection each, as clients that begin during the redeploy have.
            async with http.post("/v1/chat/completions", json=BODY) as reply:
                text = await reply.text()
            complete = reply.status == 200 and text.endswith("data: [DONE]\n\n")
            answers.append("" if complete else f"{reply.status} {text[-300:]}")

    async with (
        aiohttp.ClientSession(app.url, connector=aiohttp.TCPConnector(force_close=True)) as http,
        asyncio.timeout(START_TIMEOUT_S),
        asyncio.TaskGroup() as group,
    ):
        for _ in range(CLIENTS):
            group.create_task(client(http))
        await asyncio.to_thread(app.deploy, document)
        while before & await asyncio.to_thread(ingresses, app):
            await asyncio.sleep(0.1)
        count = len(answers)
        while len(answers) < count + 2 * CLIENTS:  # by the new replica
            await asyncio.sleep(0.1)
        ended.set()

    assert [answer for answer in answers if answer] == []
    assert len(answers) > 20
