"""Budgets in the ledger's database: what they have paid, and what ingress replicas have leased.

A cost is added to its budgets in the transaction that adds the cost to the ledger. So the sums of both are
equal, and a write that is repeated counts once.

An ingress replica leases money, and admits requests from its lease without the database. For each budget, the
costs of the period and all leases are at most the limit when a lease grows. The lease of a lost replica ends
after `LEASE_S`. By then the costs of its requests are in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, Double, MetaData, String, Table, func, select
from sqlalchemy.engine import Connection

from serve_app.database import Tables, connect, database_time, exclusive, insert_into
from serve_app.ledger.usage import QUERIES, Account, Amounts

LEASE_S = 120.0
"""How long a lease is valid after its last renewal, by the database's clock."""
QUARTER_S = 900
"""Costs are summed by the quarter of an hour, because a day of any time zone begins with one."""
KEPT_S = 40 * 86_400
"""Longer than any period."""
_LOCK = 0x7469_6462
"""The number of the advisory lock for leases."""

TABLES = Tables("budgets", 1, MetaData())
COSTS = Table(
    "budget_costs",
    TABLES.tables,
    Column("application", String, primary_key=True),
    Column("budget", String, primary_key=True),
    Column("quarter", BigInteger, primary_key=True),
    Column("cost", Double, nullable=False),
)
_LEASES = Table(
    "budget_leases",
    TABLES.tables,
    Column("application", String, primary_key=True),
    Column("budget", String, primary_key=True),
    Column("holder", String, primary_key=True),
    Column("amount", Double, nullable=False),
    Column("renewed_at", Double, nullable=False),
)


def cost_rows(application: str, rows: Mapping[tuple[int, Account], Amounts]) -> list[dict[str, Any]]:
    """Return the costs in rows of the ledger by budget and quarter, in the order of their keys."""
    costs: dict[tuple[str, int], float] = {}
    for (minute, account), amounts in rows.items():
        for budget in account.budgets:
            paid = budget, minute - minute % QUARTER_S
            costs[paid] = costs.get(paid, 0.0) + amounts.cost
    return [
        {"application": application, "budget": budget, "quarter": quarter, "cost": cost}
        for (budget, quarter), cost in sorted(costs.items())
    ]


class Ask(NamedTuple):
    """An ingress replica's ask for a lease."""

    limit: float
    """The most money of the period."""
    period: tuple[float, float]
    """Its begin and end, in Unix time."""
    least: float
    """The part of the lease that requests may have taken already."""
    most: float
    """The lease that the replica would like to have."""


class Grant(NamedTuple):
    """A lease, and the rest of the budget."""

    lease: float
    spent: float
    """What the ledger has of the period."""
    elsewhere: float
    """The leases of all other ingress replicas."""


class BudgetStore:
    """One ingress replica's access to its budgets. Errors are those of `UsageStore`.

    Args:
        holder: The name of this process among all processes.
    """

    def __init__(self, url: str, application: str, holder: str) -> None:
        self._application, self._holder = application, holder
        self._engine = connect(url, QUERIES)

    def lease(self, asks: Mapping[str, Ask]) -> dict[str, Grant]:
        """Renew this replica's leases, by budget. A lease of 0 is given back."""
        TABLES.make(self._engine)
        with exclusive(self._engine, _LOCK) as connection:
            now = database_time(connection)
            mine, held = _LEASES.c.application == self._application, _LEASES.c.holder == self._holder
            connection.execute(_LEASES.delete().where(mine, _LEASES.c.renewed_at < now - LEASE_S))
            elsewhere = self._leased(connection, asks, ~held)
            # After the leases: a cost is committed before its part of a lease is given back.
            spent = self._spent(connection, {name: ask.period for name, ask in asks.items()})
            grants = {}
            for name, ask in asks.items():
                left = ask.limit - spent.get(name, 0.0) - elsewhere.get(name, 0.0)
                lease = max(ask.least, min(ask.most, left))
                grants[name] = Grant(lease, spent.get(name, 0.0), elsewhere.get(name, 0.0))
            connection.execute(_LEASES.delete().where(mine, held, _LEASES.c.budget.in_(list(asks))))
            if rows := [
                {"budget": name, "amount": grant.lease, "renewed_at": now}
                | {"application": self._application, "holder": self._holder}
                for name, grant in grants.items()
                if grant.lease > 0
            ]:
                connection.execute(insert_into(self._engine)(_LEASES), rows)
        return grants

    def look(self, periods: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Return what each budget has paid in its period, and what all ingress replicas have leased."""
        TABLES.make(self._engine)
        with self._engine.connect() as connection:
            fresh = _LEASES.c.renewed_at >= database_time(connection) - LEASE_S
            leased, spent = self._leased(connection, periods, fresh), self._spent(connection, periods)
        return {name: (spent.get(name, 0.0), leased.get(name, 0.0)) for name in periods}

    def close(self) -> None:
        self._engine.dispose()

    def _leased(self, connection: Connection, budgets: Iterable[str], chosen: Any) -> dict[str, float]:
        name = _LEASES.c.budget
        mine = (_LEASES.c.application == self._application) & name.in_(list(budgets))
        sums = select(name, func.sum(_LEASES.c.amount)).where(mine, chosen).group_by(name)
        return {row[0]: row[1] for row in connection.execute(sums)}

    def _spent(self, connection: Connection, periods: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        name, spent = COSTS.c.budget, {}
        for period in set(periods.values()):
            names = [each for each in periods if periods[each] == period]
            mine = (COSTS.c.application == self._application) & name.in_(names)
            within = (COSTS.c.quarter >= period[0]) & (COSTS.c.quarter < period[1])
            sums = select(name, func.sum(COSTS.c.cost)).where(mine, within).group_by(name)
            spent.update({row[0]: row[1] for row in connection.execute(sums)})
        return spent
