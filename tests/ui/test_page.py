"""The page in a real browser, over stub engines and a made-up fleet."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_app.api.api_keys import ApiKeyFile
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from tests.loadtests.drawing.browser import needs_browser
from tests.loadtests.drawing.elements import HOSTILE
from tests.stub_engine import StubEngine, frames
from tests.ui.browser import LIMIT_S, Page
from tests.ui.fleet import FakeFleet, model_state, record
from tests.ui.served import part, served

pytestmark = needs_browser

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
DRAWN = "document.querySelectorAll('.uplot').length == 7"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
async def test_every_view_fits_its_screen(page: Page, width: int, scheme: str) -> None:
    await page.size(width)
    await page.scheme(scheme)
    async with served() as (_, url):
        for view in ("fleet", "playground", "knobs"):
            await page.visit(f"{url}/?{view}#{view}")
            await page.until(f"document.querySelector('#view-{view}')?.hidden === false")
            assert await page.run("document.documentElement.scrollWidth") <= width
        ground = await page.run("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(246, 247, 249)" if scheme == "light" else "rgb(14, 20, 27)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_fault(page: Page, scheme: str) -> None:
    await page.scheme(scheme)
    async with served() as (_, url):
        await page.visit(url)
        await page.until(DRAWN)
        await page.run(AXE.read_text("utf-8"))
        for view in ("fleet", "playground", "knobs"):
            await page.run(f"location.hash = '{view}'")
            await page.until(f"document.querySelector('#view-{view}').hidden === false")
            found = await page.run(
                "axe.run().then(({violations}) => violations.map(({id, nodes}) => [id, nodes[0].html]))"
            )
            assert found == []


async def test_it_asks_only_its_server_and_transfers_little(page: Page) -> None:
    async with served() as (_, url):
        await page.visit(url)
        await page.until(DRAWN)
        files = ["/", "/autoscaling/events", "/ui/page.css", "/ui/page.js"]
        assert sorted(page.requested) == [f"{url}{file}" for file in files]
        assert page.received_bytes < 150_000


async def test_the_policy_forbids_inline_scripts_and_other_servers(page: Page) -> None:
    async with served() as (_, url):
        await page.visit(url)
        await page.until(DRAWN)
        told = await page.run("""new Promise((done) => {
          addEventListener("securitypolicyviolation", ({ effectiveDirective }) => done(effectiveDirective));
          const script = document.createElement("script");
          script.textContent = "document.title = 'taken over'";
          document.body.append(script);
        })""")
        assert told == "script-src-elem"
        assert await page.run("document.title") == "Fleet · Tideserve"
        page.console.clear()  # the browser reports the violation


async def test_the_fleet_follows_its_events(page: Page) -> None:
    async with served() as (server, url):
        await page.visit(f"{url}/#main")  # no view
        await page.until("document.querySelector('#headline').innerText.includes('2 ready')")
        assert "14 requests/s arrive" in await page.text()
        assert "weights and KV cache for 1.4 s, ready in about 4 s" in await page.text()
        server.fleet.models = {**server.fleet.models, "tideserve-tiny": model_state(ready=3, target=3)}
        await page.until("document.querySelector('#headline').innerText.includes('3 ready')")
        await page.until("document.querySelector('#starts-title').closest('section').hidden")
        assert "$7.47" in await page.text()
        await page.run("location.hash = 'fleet'")
        await page.click(".skip")
        assert await page.run("document.activeElement.id + location.hash") == "main#fleet"


async def test_variants_have_their_replicas_and_prices(page: Page) -> None:
    fleet = FakeFleet("tide")
    spot = {"target": 3, "ready": 2, "usd_per_hour": 3.6, "capacity_rps": 6.12, "at_once": 1, "dry_s": 0.0}
    variants = {
        "spot": {**spot, "meets_targets": 1},
        "on-demand": {**spot, "ready": 1, "usd_per_hour": 3.7, "dry_s": 44.2, "meets_targets": 1},
        "l40s": {**spot, "ready": 0, "usd_per_hour": 0.0, "meets_targets": 0},
    }
    fleet.models["tide"] = model_state(variants=variants, usd_per_hour=7.3, dearest_usd_per_hour=14.8)
    async with served(fleet) as (_, url):
        await page.visit(url)
        await page.until(DRAWN)
        text = await page.text()
        assert "$7.30" in text
        assert "$14.80 with the dearest variant alone" in text
        table = "[...document.querySelectorAll('[aria-label=Variants] tbody tr')]"
        rows = await page.run(f"{table}.map((row) => row.innerText.replaceAll('\\xa0', ' '))")
        assert [row.split("\t") for row in rows] == [
            ["spot", "2", "3", "1", "6.12", "$3.60", ""],
            ["on-demand", "1", "3", "1", "6.12", "$3.70", "no node; next try in 45 s"],
            ["l40s", "0", "3", "1", "6.12", "$0.00", "too slow for the targets"],
        ]
        assert await page.run("document.documentElement.scrollWidth") <= 1280


async def test_only_the_percentile_with_the_target_is_judged(page: Page) -> None:
    async with served() as (server, url):
        await page.visit(url)
        for percentile, title, judged in ((95, "ITL P95", 2), (99, "at P99", 0), (50, "ITL P50", 2)):
            server.fleet.knobs = {
                **server.fleet.knobs,
                "tideserve-tiny": Knobs.model_validate({"ttft_percentile": percentile}),
            }
            await page.until(f"document.querySelector('#headline').innerText.includes('{title}')")
            assert await page.run("document.querySelectorAll('.figure:is(.good, .bad)').length") == judged


async def test_a_silent_policy_is_announced_once(page: Page) -> None:
    async with served() as (server, url):
        await page.visit(url)
        server.fleet.policy = {**server.fleet.policy, "silent_s": 16}
        await page.until("document.querySelector('[aria-live=off]').textContent.startsWith('16')")
        await page.run(
            "(window.announced = document.querySelector('[aria-live=polite] .problem').firstChild).data"
        )
        server.fleet.policy = {**server.fleet.policy, "silent_s": 17}
        await page.until("document.querySelector('[aria-live=off]').textContent.startsWith('17')")
        assert await page.run("announced.isConnected")


async def test_a_hidden_tab_follows_nothing_until_it_is_shown(page: Page) -> None:
    async with served() as (server, url):
        await page.visit(f"{url}/#playground")
        await page.until("document.querySelector('#model')?.options.length")
        await page.run("document.querySelector('#model').replaceChildren()")
        await page.window("minimized")
        async with asyncio.timeout(LIMIT_S):
            while server.fleet.watched:
                await asyncio.sleep(0.05)
        await page.window("normal")
        await page.until("document.querySelector('#model').options.length")
        assert server.fleet.watched


async def test_a_lost_replica_is_a_line_of_the_history(page: Page) -> None:
    fleet = FakeFleet()
    [*_, last] = fleet.records
    reason = "Replica q7x2m1ab was lost (engine_hung): the engine took no step for 30 s."
    loss = {"seq": 3, "kind": "loss", "old_target": 3, "binding": "loss", "reason": reason, "terms": []}
    fleet.records.append(last | loss | {"counterfactual": "Ray replaces it."})
    async with served(fleet) as (_, url):
        await page.visit(url)
        await page.until("document.querySelectorAll('.decision-list li').length == 3")
        line = await page.run("document.querySelector('.decision-list li').innerText")
        assert reason in line
        assert await page.run("document.querySelector('.decision-list li .move.error').innerText") == "3 → 3"
        assert reason not in await page.run("document.querySelector('.verdict').innerText")
        told = await page.run("document.querySelector('.decision-list .counterfactual').textContent")
        assert told == "next: Ray replaces it."


async def test_page_says_who_gave_a_place_to_whom(page: Page) -> None:
    fleet = FakeFleet()
    [*_, last] = fleet.records
    reason = "share: beta waits; alpha has been idle for 40 s and gives its place."
    gave = {"seq": 3, "model": "alpha", "binding": "share", "reason": reason, "gives_to": "beta"}
    fleet.records.append(last | gave)
    async with served(fleet) as (_, url):
        await page.visit(url)
        await page.until("document.querySelectorAll('.handovers li').length == 1")
        line = await page.run("document.querySelector('.handovers li').innerText")
        assert "alpha → beta beta waits; alpha has been idle for 40 s" in line


async def test_readers_keep_their_place_when_the_state_changes(page: Page) -> None:
    await page.size(360)
    async with served() as (server, url):
        await page.visit(url)
        await page.until(DRAWN)
        await page.run("document.querySelector('summary').click()")
        await page.run("document.querySelector('[data-key=\"org/embed\"]').focus()")
        await page.run("document.querySelector('.scrolling').scrollLeft = 50")
        server.fleet.fresh = [
            {**record(seq, 0.0, "org/embed", 0, 0), "kind": "heartbeat"} for seq in range(3, 303)
        ]
        server.fleet.models = {**server.fleet.models, "org/embed": model_state(ready=5)}
        await page.until("document.querySelector('.scrolling').innerText.includes('5')")
        assert await page.run("document.activeElement.innerText") == "org/embed"
        assert await page.run("document.querySelector('.scrolling').scrollLeft") == 50
        assert await page.run("document.querySelectorAll('.decision-list li').length") == 2
        server.fleet.fresh = [record(400, 0.0, "tideserve-tiny", 3, 4)]
        await page.until("document.querySelectorAll('.decision-list li').length == 3")
        assert await page.run("document.querySelectorAll('.decision-list [open]').length") == 1
        assert "2 → 3" in await page.run("document.querySelector('.decision-list [open]').innerText")


async def test_a_knob_is_changed_and_a_bad_value_refused(page: Page) -> None:
    async with served() as (server, url):
        await page.visit(f"{url}/#knobs")
        await page.until("document.querySelector('#knob-max_replicas')")
        await page.fill("#knob-max_replicas", "7")
        await page.click("[data-name=max_replicas] [type=submit]")
        await page.until("document.querySelector('.changed')?.innerText == 'tideserve-tiny.max_replicas: 7'")
        assert server.fleet.set == [("tideserve-tiny", {"max_replicas": 7}, "a client without an API key")]
        await page.run("document.querySelector('#knob-max_replicas').focus()")
        await page.fill("#knob-headroom", "9")
        await page.click("[data-name=headroom] [type=reset]")
        assert await page.run("document.querySelector('#knob-headroom').value") == "0.15"
        await page.fill("#knob-max_replicas", "9")
        await page.click("[data-name=max_replicas] [type=reset]")
        await page.until("document.querySelector('#knob-max_replicas').value == '1'")
        assert await page.run("document.activeElement.id") == "knob-max_replicas"
        late = 'Response.json({ changes: ["headroom: 0.15 -> 1"], in_force: false })'
        await page.run(f"((real) => (window.fetch = () => ((window.fetch = real), {late})))(fetch), null")
        await page.click("[data-name=headroom] [type=submit]")
        await page.until(
            "document.querySelector('#view-knobs .problem')?.innerText.includes('not in force yet')"
        )
        server.fleet.fails = SettingsError(["max_replicas = 0: must be at least 1"])
        await page.click("[data-name=max_replicas] [type=submit]")
        await page.until("document.querySelector('#view-knobs .problem')?.innerText.includes('at least 1')")
        page.console.clear()  # the browser reports the status 400


@pytest.fixture
def keys(tmp_path: Path) -> Callable[..., ApiKeyFile]:
    def written(*names: str) -> ApiKeyFile:
        entries = "".join(
            f"  - {{name: {name}, key: secret-{name}, admin: {str(name == 'boss').lower()}}}\n"
            for name in names
        )
        (tmp_path / "keys.yaml").write_text(f"keys:\n{entries}")
        return ApiKeyFile(str(tmp_path / "keys.yaml"))

    return written


async def test_nothing_is_shown_without_a_key(page: Page, keys: Callable[..., ApiKeyFile]) -> None:
    async with served(keys=keys("boss", "team")) as (_, url):
        await page.visit(url)
        await page.until("document.querySelector('#key')")
        assert "tideserve-tiny" not in await page.run("document.documentElement.outerHTML")
        await page.fill("#key", "wrong\u200b")
        await page.click("[type=submit]")
        assert await page.run("document.querySelector('#key').validity.patternMismatch")
        await page.fill("#key", "wrong")
        await page.click("[type=submit]")
        await page.until("document.querySelector('[role=alert]')?.innerText.includes('not one of')")
        await page.fill("#key", "secret-team")
        await page.click("[type=submit]")
        await page.until(DRAWN)
        assert (
            await page.run("JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])")
            == '[0,0,""]'
        )
        await page.run("location.hash = 'knobs'")
        await page.until("document.querySelector('#view-knobs')?.innerText.includes('Only an admin key')")
        assert await page.run("document.querySelectorAll('#view-knobs form').length") == 0
        page.console.clear()  # the browser reports each status 401


async def test_the_page_is_emptied_when_its_key_is_revoked(
    page: Page, keys: Callable[..., ApiKeyFile]
) -> None:
    in_force = keys("boss", "team")
    async with served(keys=in_force) as (_, url):
        await page.visit(url)
        await page.until("document.querySelector('#key')")
        await page.fill("#key", "secret-team")
        await page.click("[type=submit]")
        await page.until(DRAWN)
        keys("boss")
        while len(in_force) == 2:
            await in_force.refresh()
            await asyncio.sleep(0.05)
        await page.until("document.querySelector('#key')")
        assert "tideserve-tiny" not in await page.run("document.documentElement.outerHTML")
        page.console.clear()


async def test_names_prompts_and_answers_are_text(page: Page) -> None:
    hostile = HOSTILE.replace("\ud800", "")
    fleet = FakeFleet("tide", "other")
    fleet.records = [record(1, 1_700_000_000.0, "tide", 0, 1, hostile)]
    fleet.models["tide"] = model_state(reason=hostile, lost={hostile: hostile}, state="failed")
    fleet.models[hostile] = model_state()
    fleet.knobs[hostile] = fleet.knobs["tide"]
    async with served(fleet, StubEngine(frames(part(hostile), b"data: [DONE]\n\n"))) as (_, url):
        await page.visit(url)
        await page.until("document.querySelectorAll('.uplot').length > 0")
        scripts = await page.run("document.scripts.length")
        await page.run("location.hash = 'playground'")
        await page.until("document.querySelector('#model')?.options.length == 3")
        await page.fill("#prompt", hostile)
        await page.click("#view-playground [type=submit]")
        await page.until("document.querySelector('.talk').innerText.includes('done')")
        assert await page.run("document.scripts.length") == scripts == 1
        assert await page.run("document.querySelector('.talk .text').textContent") == hostile


async def test_a_lost_server_is_told(page: Page) -> None:
    async with served() as (_, url):
        await page.visit(url)
        await page.until(DRAWN)
    told = "connecting again: The server does not answer. The page shows the state at "
    await page.until(f"document.querySelector('#live').innerText.startsWith({told!r})")
    page.console.clear()  # the browser reports each refused connection
