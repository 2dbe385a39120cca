"""An ingress replica's process: it reserves money for requests until it is killed, and says for how many."""

import asyncio
import sys

from serve_app.api.budgets import Budgets, BudgetUse, Prices
from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ledger.budgets import BudgetStore
from serve_app.settings.budget import Budget
from serve_app.settings.storage import TokenPrices


async def main() -> None:
    """Reserve a dollar a request from the database of the first argument, with the limit of the third."""
    url, holder, limit = sys.argv[1:]
    prices = Prices({}, {"tide": TokenPrices(prompt=0.0, completion=1e6)})
    in_force = {"key/web": Budget(usd=float(limit), per="day")}
    budgets = Budgets(BudgetStore(url, "app", holder), prices, lambda: in_force)
    uses: list[BudgetUse | None] = []
    while True:
        request = EngineRequest("chat_completions", b"{}", "r-1", model="tide")
        try:
            uses.append(await budgets.reserve(("key/web",), request, 1, 2048))
        except ApiError:
            await asyncio.sleep(0.05)
        print(len(uses), flush=True)
        await budgets.turn()


if __name__ == "__main__":
    asyncio.run(main())
