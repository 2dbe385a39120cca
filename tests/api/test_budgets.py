"""Budgets over several ingress replicas, on an explicit clock and a real database."""

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.budgets import SETTLE_S, Budgets, BudgetUse, Prices
from serve_app.api.engine_client import EngineReply, EngineRequest, Operation
from serve_app.api.errors import ApiError
from serve_app.api.usage import UsageView
from serve_app.ledger.budgets import LEASE_S, Ask, BudgetStore, Grant
from serve_app.ledger.store import UsageStore
from serve_app.ledger.usage import Account, Amounts
from serve_app.settings.budget import Budget
from serve_app.settings.caller import Caller
from serve_app.settings.storage import TokenPrices
from tests.api.server import Server, error_of
from tests.ledger.test_budgets import end_leases
from tests.refusal import refusal_of
from tests.stub_engine import StubEngine
from tests.timing import Clock, until

NOON = 1_800_000_000.0
DAY = Budget(usd=3.0, per="day")
WEB = ("key/web",)
BOTH = ("key/web", "team/shop")
PER_TOKEN = TokenPrices(prompt=0.0, completion=1e6)
"""A dollar for each token of an answer."""


class FaultyStore(BudgetStore):
    """A real store, in front of which a test can put faults."""

    away = False
    asked = 0
    answers: threading.Event | None = None
    """Until when the database does not answer."""

    def lease(self, asks: Mapping[str, Ask]) -> dict[str, Grant]:
        self.asked += 1
        if self.answers is not None:
            self.answers.wait()
        if self.away:
            raise OperationalError("SELECT", {}, Exception("the server is away"))
        return super().lease(asks)

    def look(self, periods: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        if self.away:
            raise OperationalError("SELECT", {}, Exception("the server is away"))
        return super().look(periods)


class Fleet:
    """Ingress replicas and a ledger with one database."""

    def __init__(self, folder: Path, budgets: Mapping[str, Budget]) -> None:
        self.url = f"sqlite:///{folder}/usage.db"
        self.clock = Clock()
        self.budgets = dict(budgets)
        self.ledger = UsageStore(self.url, "app")
        self.stores: list[FaultyStore] = []
        self.written = 0
        self.unwritten_s = 0.0
        self.used: dict[str, float] = {}

    def replica(self, serve_without: bool = False, prices: Prices | None = None) -> Budgets:
        self.stores.append(FaultyStore(self.url, "app", f"i{len(self.stores)}"))
        return Budgets(
            self.stores[-1],
            prices or Prices({}, {"tide": PER_TOKEN}),
            lambda: self.budgets,
            serve_without,
            lambda: self.unwritten_s,
            self.used.update,
            self.clock,
            lambda: NOON + self.clock.now,
        )

    def pay(self, money: float, names: tuple[str, ...] = WEB) -> None:
        """An engine replica writes a cost to the ledger."""
        self.written += 1
        account = Account("tide", "web", "standard", budgets=names)
        minute = int((NOON + self.clock.now) // 60 * 60)
        self.ledger.add("engine", self.written, {(minute, account): Amounts(1, 1, 0, 1, money, money)})

    def spent(self) -> float:
        return self.ledger.used("key", 0, 1e12).get("web", Amounts()).cost

    async def settle(self, *replicas: Budgets) -> None:
        self.clock.now += SETTLE_S + 0.1
        for replica in replicas:
            await replica.turn()

    def close(self) -> None:
        self.ledger.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, {"key/web": DAY})
    yield made
    made.close()


def request(operation: Operation = "chat_completions", bytes_: int = 40) -> EngineRequest:
    return EngineRequest(operation, b"x" * bytes_, "r-1", model="tide", caller=Caller("web", budgets=WEB))


def end(use: BudgetUse | None, outcome: Any = "ok") -> None:
    assert use is not None
    asked = request()
    asked.outcome = outcome
    use.settle(asked)


async def test_requests_beyond_the_budget_are_refused(fleet: Fleet) -> None:
    replica = fleet.replica()
    uses = [await replica.reserve(WEB, request(), 1, 2048) for _ in range(3)]
    error = await refusal_of(replica.reserve(WEB, request(), 1, 2048))

    assert len(uses) == 3
    assert (error.status, error.code, error.type) == (429, "insufficient_quota", "insufficient_quota")
    assert error.message == (
        "The budget key/web of 3 USD per day has paid 0 USD, and requests reserve 3 USD. This request may "
        "cost 1 USD. The budget renews at 2027-01-16T00:00:00+00:00."
    )
    assert error.headers["Retry-After"] == "5"


async def test_a_request_pays_what_it_cost(fleet: Fleet) -> None:
    replica = fleet.replica()
    use = await replica.reserve(WEB, request(), 3, 2048)
    fleet.pay(0.5)
    end(use)
    await refusal_of(replica.reserve(WEB, request(), 1, 2048))
    await fleet.settle(replica)

    second = await replica.reserve(WEB, request(), 2, 2048)

    assert second is not None
    assert second.headers["X-Tideserve-Budget-Remaining"] == "0.5"


async def test_a_reservation_stays_while_usage_waits_for_the_ledger(fleet: Fleet) -> None:
    replica = fleet.replica()
    end(await replica.reserve(WEB, request(), 3, 2048))
    fleet.unwritten_s = 600.0
    await fleet.settle(replica)
    await refusal_of(replica.reserve(WEB, request(), 1, 2048))

    fleet.pay(3.0)
    fleet.unwritten_s = 0.0
    await fleet.settle(replica)
    error = await refusal_of(replica.reserve(WEB, request(), 1, 2048))

    assert "has paid 3 USD. This request may cost 1 USD" in error.message
    assert int(error.headers["Retry-After"]) > 120
    assert error.headers["X-Should-Retry"] == "false"


async def test_a_request_that_was_not_sent_pays_nothing(fleet: Fleet) -> None:
    replica = fleet.replica()
    for _ in range(9):
        end(await replica.reserve(WEB, request(), 3, 2048), outcome=None)
        dropped = await replica.reserve(WEB, request(), 3, 2048)
        del dropped


async def test_a_teams_budget_holds_for_all_its_keys(fleet: Fleet) -> None:
    fleet.budgets |= {"team/shop": Budget(usd=4.0, per="day"), "key/lab": DAY}
    replica = fleet.replica()
    uses = [await replica.reserve(BOTH, request(), 3, 2048)]
    uses.append(await replica.reserve(("key/lab", "team/shop"), request(), 1, 2048))
    error = await refusal_of(replica.reserve(("key/lab", "team/shop"), request(), 1, 2048))

    assert error.message.startswith("The budget team/shop of 4 USD per day")


@pytest.mark.parametrize("operation", ["tokenize", "count_tokens"])
async def test_operations_without_a_gpu_need_no_money(fleet: Fleet, operation: Operation) -> None:
    fleet.pay(5.0)

    assert await fleet.replica().reserve(WEB, request(operation), 1, 2048) is None


async def test_callers_without_a_budget_never_ask_the_database(fleet: Fleet) -> None:
    replica = fleet.replica()
    await replica.turn()

    assert await replica.reserve(("team/none",), request(), 1, 2048) is None
    assert fleet.stores[0].asked == 0


async def test_most_requests_wait_for_no_database(fleet: Fleet) -> None:
    fleet.budgets["key/web"] = Budget(usd=10_000.0, per="day")
    replica = fleet.replica()
    for _ in range(60):
        for _ in range(20):
            end(await replica.reserve(WEB, request(), 1, 2048))
        fleet.clock.now += 1.0
        await replica.turn()
    before = fleet.stores[0].asked
    for _ in range(600):
        end(await replica.reserve(WEB, request(), 1, 2048))

    assert fleet.stores[0].asked == before


async def test_refused_requests_do_not_flood_the_database(fleet: Fleet) -> None:
    fleet.pay(3.0)
    replica = fleet.replica()
    for _ in range(200):
        await refusal_of(replica.reserve(WEB, request(), 1, 2048))

    assert fleet.stores[0].asked == 1


async def test_concurrent_requests_share_a_budget_for_three(fleet: Fleet) -> None:
    """Two hundred requests come at once, at two ingress replicas."""
    replicas = [fleet.replica(), fleet.replica()]
    asked = [replicas[number % 2].reserve(WEB, request(), 1, 2048) for number in range(200)]
    found = await asyncio.gather(*asked, return_exceptions=True)

    assert sum(isinstance(each, BudgetUse) for each in found) == 3
    assert all(isinstance(each, BudgetUse) or getattr(each, "status", 0) == 429 for each in found)


async def test_a_lost_replica_blocks_no_more_than_its_lease(fleet: Fleet) -> None:
    lost, other = fleet.replica(), fleet.replica()
    kept = [await lost.reserve(WEB, request(), 1, 2048) for _ in range(2)]
    fleet.pay(0.25)  # what one of its requests had cost when it was killed
    assert len(kept) == 2

    first = await other.reserve(WEB, request(), 0, 2048)
    await refusal_of(other.reserve(WEB, request(), 1, 2048))
    assert first is not None
    await asyncio.to_thread(end_leases, fleet.url, "i0")
    await fleet.settle(other)

    second = await other.reserve(WEB, request(), 2, 2048)
    await refusal_of(other.reserve(WEB, request(), 1, 2048))
    assert second is not None


async def test_leased_money_is_spent_without_the_database(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.budgets["key/web"] = Budget(usd=1000.0, per="day")
    replica = fleet.replica()
    for _ in range(60):
        end(await replica.reserve(WEB, request(), 1, 2048))
        fleet.clock.now += 1.0
        await replica.turn()
    fleet.stores[0].away = True
    served = 0
    with caplog.at_level(logging.WARNING, "ray.serve"):
        for _ in range(30):
            end(await replica.reserve(WEB, request(), 1, 2048))
            served += 1
            fleet.clock.now += 1.0
            await replica.turn()
        fleet.clock.now += LEASE_S
        error = await refusal_of(replica.reserve(WEB, request(), 1, 2048))
        fleet.stores[0].away = False
        fleet.clock.now += 2.0
        assert await replica.reserve(WEB, request(), 1, 2048) is not None

    assert served == 30
    assert (error.status, error.code, error.headers["Retry-After"]) == (503, "budget_unavailable", "10")
    assert [record.message for record in caplog.records] == [
        "budgets: the database does not answer: the server is away",
        "budgets: the database answers again",
    ]


async def test_requests_are_served_without_the_database_if_so_set(fleet: Fleet) -> None:
    replica = fleet.replica(serve_without=True)
    fleet.stores[0].away = True

    assert await replica.reserve(WEB, request(), 1, 2048) is None


async def test_a_slow_database_delays_only_those_that_need_it(fleet: Fleet) -> None:
    replica = fleet.replica()
    kept = await replica.reserve(WEB, request(), 1, 2048)
    end(kept)
    await replica.turn()
    fleet.stores[0].answers = answers = threading.Event()
    waits = asyncio.create_task(replica.reserve(WEB, request(), 2, 2048))
    await until(lambda: fleet.stores[0].asked > 2)
    try:
        free = await replica.reserve(WEB, request(), 0, 2048)
        assert free is not None
        assert not waits.done()
    finally:
        answers.set()
    assert await waits is not None


async def test_a_cancelled_wait_needs_no_money(fleet: Fleet) -> None:
    replica = fleet.replica()
    fleet.stores[0].answers = answers = threading.Event()
    waits = asyncio.create_task(replica.reserve(WEB, request(), 3, 2048))
    await until(lambda: fleet.stores[0].asked)
    waits.cancel()
    await asyncio.wait({waits})
    answers.set()

    assert await replica.reserve(WEB, request(), 3, 2048) is not None


async def test_a_budget_renews_with_its_period(fleet: Fleet) -> None:
    fleet.budgets["key/web"] = budget = Budget(usd=3.0, per="month", timezone="Asia/Kolkata")
    end_at = budget.period(NOON)[1] - NOON
    replica = fleet.replica()
    fleet.clock.now = end_at - 2.0
    fleet.pay(3.0)
    await refusal_of(replica.reserve(WEB, request(), 1, 2048))
    fleet.clock.now = end_at + 0.5

    use = await replica.reserve(WEB, request(), 3, 2048)

    assert use is not None
    assert use.headers["X-Tideserve-Budget-Reset"] == "2027-03-01T00:00:00+05:30"


async def test_open_requests_count_in_the_next_period_too(fleet: Fleet) -> None:
    replica = fleet.replica()
    fleet.clock.now = DAY.period(NOON)[1] - NOON - 2.0
    kept = await replica.reserve(WEB, request(), 2, 2048)
    fleet.clock.now += 4.0

    await refusal_of(replica.reserve(WEB, request(), 2, 2048))
    assert kept is not None


async def test_a_changed_limit_holds_for_the_next_requests(fleet: Fleet) -> None:
    replica = fleet.replica()
    kept = await replica.reserve(WEB, request(), 3, 2048)
    fleet.budgets["key/web"] = Budget(usd=5.0, per="day")
    await replica.turn()

    assert await replica.reserve(WEB, request(), 2, 2048) is not None
    fleet.budgets["key/web"] = Budget(usd=1.0, per="day")
    await replica.turn()
    await refusal_of(replica.reserve(WEB, request(), 1, 2048))
    assert kept is not None


@pytest.mark.parametrize("seed", range(2))
async def test_random_requests_never_exceed_the_budget(fleet: Fleet, seed: int) -> None:
    """Three replicas, of which one after the other is killed; requests cost at most what they reserve."""
    draw = random.Random(seed)
    fleet.budgets["key/web"] = Budget(usd=40.0, per="day")
    replicas = [fleet.replica() for _ in range(3)]
    running: list[tuple[Budgets, BudgetUse, float]] = []
    served = 0
    for step in range(50):
        fleet.clock.now += draw.random()
        for replica in replicas:
            for _ in range(draw.randrange(3)):
                most = draw.randrange(1, 5)
                with suppress(ApiError):
                    use = await replica.reserve(WEB, request(), most, 2048)
                    assert use is not None
                    running.append((replica, use, most * draw.random()))
                    served += 1
            await replica.turn()
        while running and draw.random() < 0.5:
            _, use, money = running.pop(draw.randrange(len(running)))
            fleet.pay(money)
            end(use)
        if step in (15, 30):
            killed = replicas.pop(0)
            for _, _, money in [each for each in running if each[0] is killed]:
                fleet.pay(money * draw.random())
            running = [each for each in running if each[0] is not killed]
            replicas.append(fleet.replica())
        assert fleet.spent() <= 40.0 + 1e-9
    for _, use, money in running:
        fleet.pay(money)
        end(use)

    assert 10.0 < fleet.spent() <= 40.0 + 1e-9
    assert served > 20


def test_prices_are_learned_from_the_ledger(fleet: Fleet) -> None:
    prices = Prices({"tide": 2.0}, {})
    background = request()
    background.caller = Caller("web", "background")
    unknown = prices.most(request(), 1000, 100)
    prices.learned = {("tide", "standard"): 0.004, ("tide", "interactive"): 0.005, ("other", "standard"): 9.0}

    assert unknown == pytest.approx(2.0 * (1000 * 0.0003 + 100 * 0.02))
    assert prices.most(request(), 1000, 100) == pytest.approx(4.4)
    assert prices.most(background, 1000, 100) == pytest.approx(5.5)


def test_a_version_may_be_dearer_than_its_model() -> None:
    dear = TokenPrices(prompt=1e6, completion=1e6)
    by_tokens = Prices({}, {"tide": PER_TOKEN, "tide@new": dear}, versions={"tide": "tide@new"})
    by_time = Prices({"tide": 1.0, "tide@new": 3.0}, {}, versions={"tide": "tide@new"})

    assert by_tokens.most(request(), 10, 5) == pytest.approx(15.0)
    assert by_time.most(request(), 0, 50) == pytest.approx(3.0)


async def test_a_replica_learns_prices_and_publishes_shares(fleet: Fleet) -> None:
    fleet.pay(2.4)
    prices = Prices({}, {}, fleet.ledger.prices)
    await fleet.replica(prices=prices).turn()

    assert prices.learned == {("tide", "standard"): pytest.approx(1.2)}
    assert fleet.used == {"key/web": pytest.approx(0.8)}


KEYS = """
keys:
  - {name: web, key: sk-web, team: shop, budget: {usd: 3, per: month, timezone: Europe/Berlin}}
  - {name: lab, key: sk-lab, team: shop}
  - {name: free, key: sk-free}
  - {name: boss, key: sk-boss, admin: true}
teams:
  shop: {budget: {usd: 4, per: week}}
"""
CHAT = "/v1/chat/completions"
BODY = {"model": "tide", "max_tokens": 1, "messages": [{"role": "user", "content": "sea"}]}


@pytest.fixture
async def http(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Server]:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    keys = ApiKeyFile(str(path))
    fleet.budgets = dict(keys.budgets)
    replica = fleet.replica()
    view = UsageView(fleet.ledger, "USD", replica, clock=lambda: NOON + fleet.clock.now)
    chat = StubEngine(EngineReply(200, b'{"from":"chat"}'))
    server = Server(chat=chat, api_keys=keys, budgets=replica, usage=view)
    async with server.http:
        yield server


def by(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{key}"}


async def test_answers_and_refusals_say_what_is_left(http: Server) -> None:
    replies = [await http.http.post(CHAT, json=BODY, headers=by("web")) for _ in range(4)]

    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    left = [reply.headers["x-tideserve-budget-remaining"] for reply in replies]
    assert left == ["2", "1", "0", "0"]
    assert {reply.headers["x-tideserve-budget-reset"] for reply in replies} == {"2027-02-01T00:00:00+01:00"}
    error = error_of(replies[3])
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert http.chat.requests[0].caller.budgets == ("key/web", "team/shop")
    assert (await http.http.post(CHAT, json=BODY, headers=by("free"))).status_code == 200


async def test_clients_of_anthropic_get_their_own_error(fleet: Fleet, http: Server) -> None:
    fleet.pay(4.0, ("team/shop",))
    reply = await http.http.post("/v1/messages", json=BODY, headers=by("lab"))

    assert reply.status_code == 429
    error = reply.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert error["message"].startswith("The budget team/shop of 4 USD per week has paid 4 USD.")


@pytest.mark.parametrize(
    ("key", "names"), [("web", ["key/web", "team/shop"]), ("lab", ["team/shop"]), ("free", []),
                       ("boss", ["key/web", "team/shop"])]
)  # fmt: skip
async def test_usage_says_what_budgets_have_left(
    fleet: Fleet, http: Server, key: str, names: list[str]
) -> None:
    fleet.pay(1.0, ("key/web", "team/shop"))
    await http.http.post(CHAT, json=BODY, headers=by("web"))
    document = (await http.http.get("/usage", headers=by(key))).json()

    assert [row["budget"] for row in document["budgets"]] == names
    if key == "boss":
        assert document["budgets"][0] == {
            "budget": "key/web",
            "usd": 3.0,
            "per": "month",
            "timezone": "Europe/Berlin",
            "spent": 1.0,
            "reserved": pytest.approx(1.0),
            "left": pytest.approx(1.0),
            "since": "2026-12-31T23:00:00+00:00",
            "until": "2027-01-31T23:00:00+00:00",
        }
        assert document["data"][0]["cost"] == document["budgets"][0]["spent"]


@pytest.mark.parametrize(
    ("path", "body", "money"),
    [
        ("/v1/chat/completions", {"max_tokens": 5, "n": 3}, 15.0),
        ("/v1/chat/completions", {}, 2048.0),
        ("/v1/chat/completions", {"n": 2}, 4096.0),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 5}, 15.0),
        ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 5, "n": 2}, 20.0),
        ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 5}, 5.0),
        ("/v1/completions", {"prompt": ["a", "b"]}, 4096.0),
    ],
)
async def test_all_answers_of_a_request_are_reserved(
    fleet: Fleet, http: Server, path: str, body: dict[str, Any], money: float
) -> None:
    """A dollar for each token of an answer, and a context of 2,048 tokens."""
    messages = [] if "prompt" in body else [{"role": "user", "content": "sea"}]
    fleet.budgets["key/web"] = fleet.budgets["team/shop"] = Budget(usd=10_000.0, per="day")
    reply = await http.http.post(path, json={"model": "tide", "messages": messages} | body, headers=by("web"))

    assert 10_000.0 - float(reply.headers["x-tideserve-budget-remaining"]) == money


async def test_all_prompts_of_a_request_are_reserved(fleet: Fleet, tmp_path: Path) -> None:
    fleet.budgets["key/web"] = Budget(usd=100_000.0, per="day")
    replica = fleet.replica(prices=Prices({}, {"tide": TokenPrices(prompt=1e6, completion=0.0)}))
    (tmp_path / "keys.yaml").write_text("keys: [{name: web, key: sk-web, budget: {usd: 1, per: day}}]")
    keys = ApiKeyFile(str(tmp_path / "keys.yaml"))
    server = Server(api_keys=keys, budgets=replica, max_body_bytes=1 << 16)
    body = {"model": "tide", "input": ["x" * 2000] * 10}
    reply = await server.http.post("/v1/embeddings", json=body, headers=by("web"))

    assert 100_000.0 - float(reply.headers["x-tideserve-budget-remaining"]) > 10_000.0
