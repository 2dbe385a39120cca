"""Chats in the page's playground, in a real browser."""

import json

from serve_app.api.engine_client import EngineReply
from tests.loadtests.drawing.browser import needs_browser
from tests.stub_engine import StubEngine, stalled
from tests.ui.browser import Page
from tests.ui.fleet import STARTING, FakeFleet, model_state
from tests.ui.served import ANSWER, part, served

pytestmark = needs_browser


async def ask(page: Page, url: str, prompt: str) -> None:
    """Send a prompt in the playground, once the models are known."""
    await page.visit(f"{url}/#playground")
    await page.until("document.querySelector('#model')?.options.length")
    await page.fill("#prompt", prompt)
    await page.click("#view-playground [type=submit]")


async def test_a_chat_streams_and_can_be_copied(page: Page) -> None:
    async with served() as (_, url):
        await ask(page, url, "It's a tide?")
        await page.until("document.querySelector('.talk').innerText.includes('62.5')")
        shown = await page.run("document.querySelector('.talk').innerText")
        assert f"Think of the moon.\n{''.join(ANSWER)}" in shown.replace("\n\n", "\n")
        assert "The answer has reached its maximum of tokens." in shown
        assert "41.2\u00a0ms" in shown
        assert "12 + 18 of the prompt" in shown
        await page.click("#view-playground .buttons button")
        code = await page.run("document.querySelector('pre').textContent")
        assert code.startswith(f"curl -N '{url}/v1/chat/completions'")
        assert "It'\\''s a tide?" in code


async def test_the_replica_and_moves_are_shown_while_the_answer_comes(page: Page) -> None:
    names = ("first", "second")
    spans = [{"name": "attempt", "attributes": {"tideserve.replica": name}} for name in names]
    trace = {"spans": [*spans, {"name": "continuation", "attributes": {}}]}
    moved = b": trace " + json.dumps(trace).encode() + b"\n\n"
    engine = StubEngine(stalled(part("A tide"), moved))
    async with served(engine=engine) as (_, url):
        await ask(page, url, "What is a tide?")
        await page.until("document.querySelector('.talk .entries').innerText.includes('Replica\\nsecond')")
        await page.until("document.querySelector('.talk .entries').innerText.includes('Moves\\n1')")
        assert "streaming" in await page.run("document.querySelector('.talk').innerText")
        await page.click("#view-playground .controls button:nth-child(2)")
        await engine.left.wait()


async def test_a_wait_for_a_start_shows_its_phase_and_eta(page: Page) -> None:
    fleet, engine = FakeFleet("tide"), StubEngine(stalled())
    phase = STARTING["phase"]
    fleet.models["tide"] = model_state(ready=0, starting=1, state="loading", phase=phase, starts=[STARTING])
    async with served(fleet, engine) as (_, url):
        await ask(page, url, "What is a tide?")
        await page.until("document.querySelector('.talk').innerText.includes('ready in about 4')")
        assert "Waiting for a replica: weights and KV cache" in await page.text()
        await page.click("#view-playground .controls button:nth-child(2)")
        await page.until("document.querySelector('.talk').innerText.includes('stopped')")
        await engine.left.wait()


async def test_a_chat_can_be_stopped(page: Page) -> None:
    engine = StubEngine(stalled(part("A tide")))
    async with served(engine=engine) as (_, url):
        await ask(page, url, "What is a tide?")
        await page.until("document.querySelector('.talk').innerText.includes('A tide')")
        await page.click("#view-playground .controls button:nth-child(2)")
        await page.until("document.querySelector('.talk').innerText.includes('stopped')")
        await engine.left.wait()


async def test_a_chat_that_fails_ends_its_request(page: Page) -> None:
    engine = StubEngine(stalled(part("A tide"), b'data: {"error": {"message": "The replica is lost."}}\n\n'))
    async with served(engine=engine) as (_, url):
        await ask(page, url, "What is a tide?")
        await page.until("document.querySelector('.talk .problem').innerText == 'The replica is lost.'")
        await engine.left.wait()


async def test_a_new_chat_forgets_an_answer_that_it_stops(page: Page) -> None:
    engine = StubEngine(stalled(part("A tide")))
    async with served(engine=engine) as (_, url):
        await ask(page, url, "Why?")
        await page.until("document.querySelector('.talk').innerText.includes('A tide')")
        await page.click("#view-playground .controls button:nth-child(3)")
        await engine.left.wait()
        await page.until("!document.querySelector('#view-playground [type=submit]').disabled")
        await page.click("#view-playground .buttons button")
        code = await page.run("document.querySelector('pre').textContent")
        assert ("Why?" in code, "What is a tide?" in code) == (False, True)


async def test_a_refusal_is_told_and_its_prompt_kept(page: Page) -> None:
    body = b'{"error":{"message":"max_tokens = 0: must be at least 1","code":"invalid_value"}}'
    async with served(engine=StubEngine(EngineReply(400, body))) as (_, url):
        await ask(page, url, "What is a tide?")
        await page.until("document.querySelector('.talk .problem')?.innerText.includes('must be at least 1')")
        await page.until("document.querySelector('#prompt').value == 'What is a tide?'")
        await page.fill("#most", "")
        await page.click("#view-playground [type=submit]")
        assert await page.run("document.querySelectorAll('.talk li').length") == 1
        page.console.clear()  # the browser reports the status 400
