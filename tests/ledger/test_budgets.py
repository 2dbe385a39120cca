"""Budgets in each kind of database: costs equal the ledger, and leases never exceed the limit."""

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy

from serve_app.ledger.budgets import LEASE_S, Ask, BudgetStore
from serve_app.ledger.store import UsageStore
from serve_app.ledger.usage import Account, Amounts
from serve_app.ledger.writer import UsageWriter
from serve_app.settings.caller import Caller
from serve_app.settings.storage import TokenPrices
from tests.ledger.replica import FakeReplica

WEB = Account("tide", "web", "standard", budgets=("key/web", "team/shop"))
LAB = Account("tide", "lab", "background", budgets=("team/shop",))
EVER = (0.0, 1e12)


@pytest.fixture
def ledger(url: str) -> Iterator[UsageStore]:
    store = UsageStore(url, "app")
    yield store
    store.close()


@pytest.fixture
def stores(url: str) -> Iterator[list[BudgetStore]]:
    made = [BudgetStore(url, "app", name) for name in ("i0", "i1", "i2")]
    yield made
    for store in made:
        store.close()


def cost(money: float) -> Amounts:
    return Amounts(1, 10, 0, 10, money, money)


def end_leases(url: str, holder: str) -> None:
    """Let the leases of a replica end, as if it had not renewed them for long."""
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        late = "UPDATE budget_leases SET renewed_at = renewed_at - :s WHERE holder = :holder"
        connection.execute(sqlalchemy.text(late), {"s": LEASE_S + 5, "holder": holder})
    engine.dispose()


def ask(most: float, least: float = 0.0, limit: float = 30.0) -> dict[str, Ask]:
    return {"key/web": Ask(limit, EVER, least, most)}


def test_costs_of_budgets_equal_the_ledger(ledger: UsageStore, stores: list[BudgetStore]) -> None:
    draw = random.Random(5)
    for number in range(60):
        rows = {(60 * draw.randrange(500), each): cost(draw.random() / 7) for each in (WEB, LAB)}
        ledger.add("replica", number + 1, rows)
        ledger.add("replica", number + 1, rows)  # the answer to the first was lost

    used = ledger.used("key", *EVER)
    spent = stores[0].look({"key/web": EVER, "team/shop": EVER, "key/none": EVER})

    assert spent["key/web"][0] == pytest.approx(used["web"].cost, abs=1e-9)
    assert spent["team/shop"][0] == pytest.approx(used["web"].cost + used["lab"].cost, abs=1e-9)
    assert spent["key/none"] == (0.0, 0.0)


def test_a_period_has_only_its_own_costs(ledger: UsageStore, stores: list[BudgetStore]) -> None:
    ledger.add("replica", 1, {(minute, WEB): cost(1.0) for minute in (840, 900, 1740, 1800)})

    assert stores[0].look({"key/web": (900.0, 1800.0)})["key/web"] == (2.0, 0.0)
    assert stores[0].look({"key/web": (0.0, 900.0)})["key/web"] == (1.0, 0.0)


def test_an_application_sees_only_its_own_budgets(url: str, ledger: UsageStore) -> None:
    ledger.add("replica", 1, {(0, WEB): cost(1.0)})
    other = BudgetStore(url, "other", "i0")

    assert other.look({"key/web": EVER})["key/web"] == (0.0, 0.0)
    other.close()


def test_leases_and_costs_never_exceed_the_limit(ledger: UsageStore, stores: list[BudgetStore]) -> None:
    ledger.add("replica", 1, {(0, WEB): cost(10.0)})

    assert stores[0].lease(ask(15.0))["key/web"] == (15.0, 10.0, 0.0)
    assert stores[1].lease(ask(15.0))["key/web"] == (5.0, 10.0, 15.0)
    assert stores[2].lease(ask(15.0))["key/web"] == (0.0, 10.0, 20.0)
    assert stores[0].lease(ask(2.0))["key/web"] == (2.0, 10.0, 5.0)
    assert stores[2].lease(ask(15.0))["key/web"] == (13.0, 10.0, 7.0)
    assert stores[2].look({"key/web": EVER})["key/web"] == (10.0, 20.0)


def test_what_requests_have_taken_stays_leased(ledger: UsageStore, stores: list[BudgetStore]) -> None:
    stores[0].lease(ask(20.0))
    ledger.add("replica", 1, {(0, WEB): cost(25.0)})

    assert stores[0].lease(ask(20.0, least=12.0))["key/web"].lease == 12.0
    assert stores[1].lease(ask(1.0))["key/web"].lease == 0.0


def test_the_lease_of_a_lost_replica_ends(url: str, stores: list[BudgetStore]) -> None:
    stores[0].lease(ask(30.0))
    assert stores[1].lease(ask(1.0))["key/web"].lease == 0.0

    end_leases(url, "i0")

    assert stores[1].look({"key/web": EVER})["key/web"] == (0.0, 0.0)
    assert stores[1].lease(ask(1.0))["key/web"] == (1.0, 0.0, 0.0)


def test_replicas_that_ask_together_share_the_limit(url: str, stores: list[BudgetStore]) -> None:
    """Three processes ask at the same time, a hundred times: never more than the limit is leased."""
    draw = random.Random(7)
    leases = [0.0, 0.0, 0.0]
    seen: list[float] = []

    def run(number: int) -> None:
        for _ in range(10):
            grant = stores[number].lease(ask(draw.uniform(0, 30)))["key/web"]
            leases[number] = grant.lease
            seen.append(grant.lease + grant.elsewhere)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 30
    assert max(seen) <= 30.0 + 1e-9
    assert sum(leases) <= 30.0 + 1e-9


def test_old_costs_are_deleted(ledger: UsageStore, stores: list[BudgetStore]) -> None:
    ledger.add("replica", 1, {(0, WEB): cost(1.0), (86_400, WEB): cost(2.0)})
    ledger.shrink(merge_before=40.5 * 86_400, delete_before=0.0)

    assert stores[0].look({"key/web": EVER})["key/web"] == (2.0, 0.0)


def test_requests_pay_for_tokens_where_tokens_have_prices(url: str, stores: list[BudgetStore]) -> None:
    replica = FakeReplica(price=3600.0, token_prices=TokenPrices(prompt=2.0, cached=0.5, completion=8.0))
    replica.serve()
    ledger = UsageStore(url, "app")
    writer = UsageWriter(replica.meter, ledger, 400, wall=lambda: replica.now)
    for _ in range(10):
        call = replica.begin(caller=Caller("web", budgets=WEB.budgets), prompt=1000)
        call.sequences[0].num_cached_tokens = 600
        replica.step(0.5, prefill=400, first=call)
        replica.step(0.25, call)
        replica.end(call)
        writer.write()

    used = ledger.used("key", *EVER)["web"]
    ledger.close()

    assert used.gpu_seconds == pytest.approx(7.5)
    assert used.cost == pytest.approx(10 * (400 * 2.0 + 600 * 0.5 + 2 * 8.0) / 1e6)
    assert stores[0].look({"key/web": EVER})["key/web"][0] == pytest.approx(used.cost, abs=1e-12)


def test_the_price_of_a_token_is_that_of_the_dearest_ten_minutes(ledger: UsageStore) -> None:
    ledger.add(
        "a", 1, {(0, WEB): Amounts(1, 150, 50, 100, 1.0, 2.0), (600, WEB): Amounts(1, 50, 0, 50, 1.0, 4.0)}
    )
    ledger.add(
        "a", 2, {(1200, WEB): Amounts(gpu_seconds=9.0, cost=9.0), (0, LAB): Amounts(1, 10, 0, 0, 1.0, 0.1)}
    )

    assert ledger.prices(0.0) == {("tide", "standard"): 0.04, ("tide", "background"): 0.01}
    assert ledger.prices(1200.0) == {}


@pytest.mark.long
def test_killed_ingress_replicas_never_overspend(url: str, stores: list[BudgetStore]) -> None:
    """Two processes reserve from one budget until it is used up. Then one is killed, and its lease ends."""
    limit = 20.0
    command = [sys.executable, "-m", "tests.api.budget_process", url]
    processes = [
        subprocess.Popen([*command, f"p{number}", str(limit)], stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    try:
        reserved = [0, 0]
        while sum(reserved) < limit:
            for number, process in enumerate(processes):
                assert process.stdout is not None
                reserved[number] = int(process.stdout.readline())
        processes[0].kill()
        assert processes[0].wait() == -signal.SIGKILL
        after = [int(processes[1].stdout.readline()) for _ in range(3) if processes[1].stdout is not None]
        spent, leased = stores[0].look({"key/web": EVER})["key/web"]

        assert sum(reserved) == limit
        assert after == [reserved[1]] * 3  # the lease of the killed process still counts
        assert (spent, leased) == (0.0, pytest.approx(limit))
        end_leases(url, "p0")
        while int(processes[1].stdout.readline() if processes[1].stdout is not None else 0) < limit:
            pass
        assert stores[0].look({"key/web": EVER})["key/web"][1] == pytest.approx(limit)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
