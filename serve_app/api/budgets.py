"""Budgets of keys and teams at one ingress replica: a request reserves the most that it can cost.

Reservations come out of a lease of the ledger's database (`ledger.budgets`). A lease has what requests have
reserved, and as much again as was reserved in the last minute, at most a tenth of what is left. So most
requests are admitted without a wait, and requests are admitted for a minute without the database.

A reservation stays until the ledger has the request's cost. Until then the part of the cost that the ledger
has already counts twice, so a budget is never exceeded by more than what requests cost above their
reservations.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest
from serve_app.api.errors import INSUFFICIENT_QUOTA, ApiError
from serve_app.ledger.budgets import LEASE_S, Ask, BudgetStore, Grant
from serve_app.settings.budget import Budget
from serve_app.settings.storage import TokenPrices

logger = logging.getLogger("ray.serve")
_T = TypeVar("_T")

WAIT_S = 5.0
"""How long a request waits for the database."""
SETTLE_S = 5.0
"""A cost is in the ledger so long after its request's end, unless usage waits for the database."""
_TURN_S = 1.0
"""The time between two asks, and how long a failure or a refusal counts."""
_LEARN_S = 60.0
_RECENT_S = 60.0
_HEADROOM = 0.1
_CLOCKS_S = 2.0
"""SQLite's clock has whole seconds."""
_BYTES_PER_TOKEN = 2.0
"""Few texts have fewer, so that the reservation for a prompt is rarely too small."""
_DECODE_S, _PREFILL_S = 0.02, 0.0003
"""The time of a replica for a token of an answer and of a prompt, without usage in the last hour."""
_LEAST = 1e-9
"""Less money counts as none, so that rounding errors neither lease nor lack any."""


@dataclass(slots=True)
class Prices:
    """The most that requests cost."""

    gpu_s: Mapping[str, float]
    """The price of one replica for a second, by model."""
    tokens: Mapping[str, TokenPrices]
    """By model, where models are billed by tokens."""
    learn: Callable[[float], Mapping[tuple[str, str], float]] = lambda since: {}
    """Returns the money for a computed token since a Unix time, by model and lane, from the database."""
    learned: Mapping[tuple[str, str], float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """The version that may answer for a model."""

    def most(self, request: EngineRequest, prompt: float, answer: float) -> float:
        """Return the most that a request with so many tokens costs."""
        models = {request.model, self.versions.get(request.model, request.model)}
        return max(self._most(model, request.caller.lane, prompt, answer) for model in models)

    def _most(self, model: str, lane: str, prompt: float, answer: float) -> float:
        if (prices := self.tokens.get(model)) is not None:
            return prices.cost(prompt, 0.0, answer)
        if (price := self.learned.get((model, lane))) is None:
            price = max((each for (name, _), each in self.learned.items() if name == model), default=None)
        if price is None:
            return self.gpu_s.get(model, 0.0) * (prompt * _PREFILL_S + answer * _DECODE_S)
        return price * (prompt + answer)


@dataclass(slots=True, eq=False)
class _Account:
    """One budget at this ingress replica. Amounts are money."""

    name: str
    budget: Budget
    lease: float = 0.0
    reserved: float = 0.0
    """For open requests, and for ended requests whose cost may not be in the ledger."""
    waiting: float = 0.0
    """For requests that wait for a lease."""
    recent: float = 0.0
    """About as much as was reserved in the last minute."""
    spent: float = 0.0
    elsewhere: float = 0.0
    """The leases of other ingress replicas."""
    renews: str = ""
    """When the next period begins."""
    valid_until: float = -math.inf
    short_until: float = -math.inf
    """Until when the budget is known to have less left than this replica needs."""

    @property
    def left(self) -> float:
        left = self.budget.usd - self.spent - self.elsewhere - self.reserved
        return left if left > 0.0 else 0.0

    def covers(self, amount: float, now: float) -> bool:
        return now < self.valid_until and self.lease - self.reserved >= amount - _LEAST

    def ask(self, now: float, wall: float) -> Ask:
        """Give back money that is not needed, and return what to ask for."""
        most = self.reserved + self.waiting + min(self.recent, _HEADROOM * self.left)
        most = most if most > _LEAST else 0.0
        self.lease = min(self.lease, most) if now < self.valid_until else self.reserved
        period = self.budget.period(wall)
        self.renews = datetime.fromtimestamp(period[1], ZoneInfo(self.budget.timezone)).isoformat()
        return Ask(self.budget.usd, period, self.lease, most)

    def apply(self, grant: Grant, asked: Ask, now: float) -> None:
        """Apply a grant that was asked for at `now`."""
        self.lease, self.spent, self.elsewhere = grant
        self.valid_until = now + LEASE_S - _CLOCKS_S
        self.short_until = now + _TURN_S if grant.lease < asked.most - _LEAST else -math.inf

    def refusal(self, amount: float, now: float) -> ApiError:
        """Return a 429 for a request that costs up to `amount`. `now` is Unix time."""
        limit, reserved, wait_s = self.budget.usd, "", self.budget.period(now)[1] - now
        if self.spent + amount <= limit:
            wait_s = SETTLE_S
            reserved = f", and requests reserve {_money(self.reserved + self.elsewhere)} USD"
        message = (
            f"The budget {self.name} of {_money(limit)} USD per {self.budget.per} has paid "
            f"{_money(self.spent)} USD{reserved}. This request may cost {_money(amount)} USD. "
            f"The budget renews at {self.renews}."
        )
        headers = {"Retry-After": str(math.ceil(wait_s)), **self.headers()}
        return ApiError(429, message, code=INSUFFICIENT_QUOTA, headers=headers)

    def headers(self) -> dict[str, str]:
        return {
            "X-Tideserve-Budget-Limit": _money(self.budget.usd),
            "X-Tideserve-Budget-Remaining": _money(self.left),
            "X-Tideserve-Budget-Reset": self.renews,
        }


def _money(amount: float) -> str:
    return f"{round(amount, 4):.12g}"


class BudgetUse:
    """The reservation of one open request. It ends with `settle`, or when it is dropped."""

    __slots__ = ("_amount", "_budgets", "_paying", "headers")

    def __init__(self, budgets: Budgets, paying: Sequence[_Account], amount: float) -> None:
        self._budgets, self._paying, self._amount = budgets, paying, amount
        for account in paying:
            account.reserved += amount
            account.recent += amount
        self.headers = min(paying, key=lambda account: account.left).headers()

    def settle(self, request: EngineRequest) -> None:
        """End the use. The reservation stays until the ledger has the cost, if the request was sent."""
        if request.outcome is not None and self._paying:
            self._budgets.ended.append((self._budgets.clock(), self._paying, self._amount))
            self._paying = ()
        self._release()

    def __del__(self) -> None:
        self._release()  # a response that was dropped before it was sent

    def _release(self) -> None:
        paying, self._paying = self._paying, ()
        for account in paying:
            account.reserved -= self._amount


class Budgets:
    """The budgets of all keys and teams at one ingress replica. Use it in one event loop.

    Args:
        unwritten_s: How many seconds the oldest usage has been waiting for the database.
        publish: Called each second with the used share of budgets, by name.
        clock: Seconds that never go back.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        leases: BudgetStore,
        prices: Prices,
        in_force: Callable[[], Mapping[str, Budget]],
        serve_without: bool = False,
        unwritten_s: Callable[[], float] = lambda: 0.0,
        publish: Callable[[Mapping[str, float]], None] = lambda used: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._leases, self._prices, self._in_force = leases, prices, in_force
        self._serve_without, self._unwritten_s, self._publish = serve_without, unwritten_s, publish
        self.clock, self._wall = clock, wall
        self.ended: deque[tuple[float, Sequence[_Account], float]] = deque()
        """The reservations of ended requests, with the time of the end."""
        self._accounts: dict[str, _Account] = {}
        self._used: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(2, "budgets")
        self._asking: asyncio.Task[None] | None = None
        self._failed_until = -math.inf
        self._trouble = ""
        self._turned_at = clock()
        self._learn_at = -math.inf

    async def reserve(
        self, names: Sequence[str], request: EngineRequest, bound: int, context: float
    ) -> BudgetUse | None:
        """Reserve the most that a request can cost in each of its budgets; None if it has no budget.

        Args:
            names: The names of its budgets; those that do not exist do not count.
            bound: The most tokens of its answer.
            context: The most tokens of its prompt.

        Raises:
            ApiError: 429 if a budget has too little left, 503 if the database does not answer.
        """
        paying, budgets = [], self._in_force()
        for name in names:
            if (budget := budgets.get(name)) is not None:
                account = self._accounts.get(name)
                if account is None:
                    account = self._accounts[name] = _Account(name, budget)
                account.budget = budget
                paying.append(account)
        if not paying or request.operation not in GPU_OPERATIONS:
            return None
        prompt = min(request.prompt_bytes / _BYTES_PER_TOKEN, context)
        amount, now = self._prices.most(request, prompt, bound), self.clock()
        for account in paying:
            if not account.covers(amount, now) and not await self._wait(paying, amount):
                return None
        return BudgetUse(self, paying, amount)

    def rows(self, names: Sequence[str] | None) -> list[dict[str, Any]]:
        """Return the state of budgets from the database, by default of all. Call it in a thread."""
        now, found = self._wall(), self._in_force()
        chosen = {name: found[name] for name in (found if names is None else names) if name in found}
        periods = {name: budget.period(now) for name, budget in chosen.items()}
        looked = self._leases.look(periods) if chosen else {}
        return [
            {"budget": name, **budget.model_dump(), "spent": spent, "reserved": reserved}
            | {"left": max(0.0, budget.usd - spent - reserved)}
            | {"since": iso(periods[name][0]), "until": iso(periods[name][1])}
            for name, budget in chosen.items()
            for spent, reserved in [looked[name]]
        ]

    async def run(self) -> None:
        """Take a turn each second, until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(_TURN_S)

    async def turn(self) -> None:
        """End reservations whose cost is in the ledger, renew leases, and publish. Never raises."""
        now = self.clock()
        settled = now - SETTLE_S - self._unwritten_s()
        while self.ended and self.ended[0][0] <= settled:
            _, paying, amount = self.ended.popleft()
            for account in paying:
                account.reserved -= amount
        fading = math.exp((self._turned_at - now) / _RECENT_S)
        self._turned_at = now
        for account in self._accounts.values():
            account.recent = account.recent * fading if account.recent * fading > _LEAST else 0.0
        if self._accounts:
            await self._ask()
        budgets = self._in_force()
        if budgets and now >= self._learn_at:
            self._learn_at = now + _LEARN_S
            await self._guarded(self._learn, budgets, self._wall())
        self._publish({name: used for name, used in self._used.items() if name in budgets})

    async def _wait(self, paying: Sequence[_Account], amount: float) -> bool:
        """Wait until leases cover the amount; return whether they do. Raises as `reserve`."""
        deadline = self.clock() + WAIT_S
        for account in paying:
            account.waiting += amount
        try:
            while lacking := [each for each in paying if not each.covers(amount, self.clock())]:
                now = self.clock()
                if short := [each for each in lacking if now < each.short_until]:
                    raise short[0].refusal(amount, self._wall())
                if now >= deadline or now < self._failed_until:
                    if self._serve_without:
                        return False
                    message = "The database of budgets does not answer, and no leased money is left."
                    raise ApiError(503, message, code="budget_unavailable", headers={"Retry-After": "10"})
                await asyncio.wait({self._ask()}, timeout=deadline - now)
        finally:
            for account in paying:
                account.waiting -= amount
        return True

    def _ask(self) -> asyncio.Task[None]:
        """Return the task that asks for leases, which one request after the other may need."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._renew())
        return self._asking

    async def _renew(self) -> None:
        now, wall = self.clock(), self._wall()
        asks = {name: account.ask(now, wall) for name, account in self._accounts.items()}
        for name, grant in (await self._guarded(self._leases.lease, asks) or {}).items():
            account = self._accounts[name]
            account.apply(grant, asks[name], now)
            self._used[name] = account.spent / account.budget.usd
            taken = account.lease + account.waiting + account.reserved
            if taken < _LEAST and account.short_until < now:
                del self._accounts[name]

    def _learn(self, budgets: Mapping[str, Budget], now: float) -> None:
        """Learn prices, and the state of budgets that nobody uses here. Runs in the thread."""
        self._prices.learned = self._prices.learn(now - 3600.0)
        found = self._leases.look({name: budget.period(now) for name, budget in budgets.items()})
        self._used |= {name: spent / budgets[name].usd for name, (spent, _) in found.items()}

    async def _guarded(self, call: Callable[..., _T], *given: Any) -> _T | None:
        """Call the database in the thread; None if it fails, which is logged once."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, call, *given)
        except Exception as error:  # its text may name hosts
            self._failed_until = self.clock() + _TURN_S
            if not self._trouble:
                why = str(getattr(error, "orig", None) or error).strip()
                logger.error("budgets: the database does not answer: %s", why)
            self._trouble = type(error).__name__
            return None
        if self._trouble:
            logger.warning("budgets: the database answers again")
        self._trouble = ""
        return found


def iso(moment: float) -> str:
    """Return a Unix time in ISO 8601."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
