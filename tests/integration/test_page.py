"""The page of a running application, in a real browser: a cold start from zero, a chat, and a knob."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.integration.cluster import Running, application, engine_settings
from tests.loadtests.drawing.browser import needs_browser
from tests.ui.browser import Page, chromium

pytestmark = [needs_browser, pytest.mark.long]

CHAT = "tideserve-tiny"
INGRESS = "ray::ServeReplica:tideserve:Ingress"
KNOBS = {"min_replicas": 0, "max_replicas": 2, "downscale_to_zero_delay_s": 600, "keep_alive_interval_s": 0.5}


@pytest.fixture(scope="module")
def cold() -> Iterator[Running]:
    prices = {"gpu_hour_prices": {"cpu": 0.5}}
    # Without a zygote, a start takes long enough to be seen through its phases.
    running = Running(application(engine_settings(CHAT), knobs={CHAT: KNOBS}, ledger=prices, zygote=False))
    with running.serving():
        yield running


@pytest.fixture(scope="module")
async def page(cold: Running) -> AsyncIterator[Page]:
    async with chromium() as found:
        await found.size(1280)
        yield found


async def test_a_chat_from_zero_shows_the_phases_and_then_its_figures(cold: Running, page: Page) -> None:
    await page.visit(f"{cold.url}/#fleet")
    await page.until("/idle at zero/i.test(document.querySelector('#headline')?.innerText)")
    await page.run("location.hash = 'playground'")
    await page.until("document.querySelector('#model')?.options.length == 1")
    await page.run(
        """window.told = new Set();
        new MutationObserver(() => window.told.add(document.querySelector('.talk [role=status]').innerText))
          .observe(document.querySelector('.talk'), {subtree: true, childList: true, characterData: true})"""
    )
    await page.fill("#prompt", "Tell me about the sea.")
    await page.click("#view-playground [type=submit]")
    await page.run("location.hash = 'fleet'")
    await page.until("document.querySelector('.starts')?.innerText.includes('for')")
    await page.until("document.querySelector('#headline').innerText.includes('1 ready')", limit_s=120)
    await page.run("location.hash = 'playground'")
    await page.until("document.querySelector('.talk [role=status]').innerText == 'done'")

    told = await page.run("[...window.told]")
    assert any(words.startswith("Waiting for a replica: ") for words in told)
    pairs = "[...document.querySelectorAll('.talk dl div')].map((each) => each.innerText.split('\\n'))"
    figures = dict(await page.run(pairs))
    assert len(figures["Replica"]) > 1  # a dash stands for none
    assert figures["Moves"] == "0"
    assert "of the prompt" in figures["Tokens"]


async def test_the_fleet_shows_cost_figures_and_the_decision(cold: Running, page: Page) -> None:
    await page.run("location.hash = 'fleet'")
    await page.until("document.querySelector('#headline').innerText.includes('$0.50')")
    await page.until("document.querySelectorAll('.uplot').length == 7")
    await page.until("/ITL P95, last 30 s\\n[0-9]/.test(document.querySelector('#headline').innerText)")
    assert "Next: " in await page.text()


async def test_a_knob_changes_and_the_log_says_who_did_it(cold: Running, page: Page) -> None:
    await page.run("location.hash = 'knobs'")
    await page.until("document.querySelector('#knob-max_replicas')?.value == '2'")
    await page.fill("#knob-max_replicas", "3")
    await page.click("[data-name=max_replicas] [type=submit]")
    await page.until(f"document.querySelector('.changed')?.innerText == '{CHAT}.max_replicas: 2 -> 3'")
    await page.until("document.querySelector('[data-name=max_replicas] .help').innerText.includes('Default')")

    in_force = httpx.get(f"{cold.url}/autoscaling/knobs").json()["models"][CHAT]
    assert in_force["max_replicas"] == 3
    line = f"knobs set by a client without an API key: {CHAT}.max_replicas: 2 -> 3"
    assert any(line in log.read_text() for log in cold.folder.rglob("serve/replica_*Ingress*.log"))
    assert page.console == []


def test_the_streams_of_pages_do_not_hold_up_a_drain(cold: Running) -> None:
    with httpx.Client(base_url=cold.url, timeout=60) as http:
        two = {"model": "ingress", "knobs": {"min_replicas": 2, "max_replicas": 2}}
        assert http.post("/autoscaling/knobs", json=two).json()["in_force"] is True
        while len(cold.processes(INGRESS)) < 2:
            http.get("/health")
        events = [http.stream("GET", "/autoscaling/events") for _ in range(2)]
        with events[0], events[1]:
            one = {
                "model": "ingress",
                "knobs": {"min_replicas": 1, "max_replicas": 1, "downscale_delay_s": 0},
            }
            assert httpx.post(f"{cold.url}/autoscaling/knobs", json=one, timeout=60).status_code == 200
            while len(cold.processes(INGRESS)) > 1:
                httpx.get(f"{cold.url}/health")
