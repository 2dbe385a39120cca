import asyncio
import csv
import threading
from pathlib import Path

import pytest
import yaml

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.errors import ApiError
from serve_app.api.usage import UsageView, parse_time
from serve_app.ledger.store import UsageStore
from serve_app.ledger.usage import Account, Amounts
from tests.api.server import Server, error_of

NOON = 1_700_000_000.0 // 60 * 60
ALICE, BOB = Account("tide", "alice", "interactive"), Account("org/embed", "bob", "background")


@pytest.fixture
def store(tmp_path: Path) -> UsageStore:
    """A ledger with usage of a minute and of a day ago."""
    store = UsageStore(f"sqlite:///{tmp_path}/usage.db")
    rows = {
        (int(NOON) - 60, ALICE): Amounts(2, 30, 10, 20, 4.0, 0.5),
        (int(NOON) - 60, BOB): Amounts(1, 5, 0, 0, 1.0, 0.125),
        (int(NOON) - 60, Account("tide", state="idle")): Amounts(gpu_seconds=5.0, cost=0.25),
        (int(NOON) - 2 * 86_400, BOB): Amounts(9, 90, 0, 9, 9.0, 9.0),
    }
    store.add("replica", 1, rows)
    return store


@pytest.fixture
def server(store: UsageStore) -> Server:
    return Server(usage=UsageView(store, "EUR", clock=lambda: NOON))


async def test_usage_of_the_last_day_by_key(server: Server) -> None:
    reply = await server.http.get("/usage")

    assert reply.json() == {
        "object": "usage",
        "by": "key",
        "since": "2023-11-13T22:13:00+00:00",
        "until": "2023-11-14T22:13:00+00:00",
        "currency": "EUR",
        "unwritten_since": None,
        "budgets": [],
        "data": [
            {
                "key": "alice",
                "requests": 2,
                "prompt_tokens": 30,
                "cached_tokens": 10,
                "completion_tokens": 20,
                "gpu_seconds": 4.0,
                "cost": 0.5,
            },
            {
                "key": "bob",
                "requests": 1,
                "prompt_tokens": 5,
                "cached_tokens": 0,
                "completion_tokens": 0,
                "gpu_seconds": 1.0,
                "cost": 0.125,
            },
        ],
        "unused": [{"state": "idle", "gpu_seconds": 5.0, "cost": 0.25}],
        "total": {
            "requests": 3,
            "prompt_tokens": 35,
            "cached_tokens": 10,
            "completion_tokens": 20,
            "gpu_seconds": 10.0,
            "cost": 0.875,
        },
    }


@pytest.mark.parametrize(("by", "name"), [("lane", "interactive"), ("model", "tide")])
async def test_usage_by_lane_and_by_model(server: Server, by: str, name: str) -> None:
    reply = await server.http.get("/usage", params={"by": by, "since": "1h"})

    assert reply.json()["data"][0][by] == name


@pytest.mark.parametrize("kind", ["json", "csv"])
async def test_old_figures_say_since_when_nothing_was_stored(store: UsageStore, kind: str) -> None:
    view = UsageView(store, "EUR", unwritten_s=lambda: 3600.0, clock=lambda: NOON)

    reply = await Server(usage=view).http.get("/usage", params={"format": kind})

    assert reply.headers["X-Tideserve-Unwritten-Since"] == "2023-11-14T21:13:00+00:00"
    assert kind == "csv" or reply.json()["unwritten_since"] == "2023-11-14T21:13:00+00:00"


async def test_usage_as_csv(server: Server) -> None:
    reply = await server.http.get("/usage", params={"format": "csv", "since": "3d"})

    assert reply.headers["content-type"] == "text/csv; charset=utf-8"
    assert list(csv.reader(reply.text.splitlines())) == [
        ["key", "state", "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "gpu_seconds",
         "cost", "currency"],
        ["bob", "used", "10", "95", "0", "9", "10.0", "9.125", "EUR"],
        ["alice", "used", "2", "30", "10", "20", "4.0", "0.5", "EUR"],
        ["", "idle", "0", "0", "0", "0", "5.0", "0.25", "EUR"],
    ]  # fmt: skip


@pytest.mark.parametrize(("admin", "names"), [(False, ["bob"]), (True, ["alice", "bob"])])
async def test_a_key_sees_its_own_usage_and_an_admin_key_all(
    store: UsageStore, tmp_path: Path, admin: bool, names: list[str]
) -> None:
    file = tmp_path / "keys.yaml"
    entry = {"name": "bob", "key": "sk-tide-0123456789abcdef", "admin": admin}
    file.write_text(yaml.safe_dump({"keys": [entry]}))
    keys = ApiKeyFile(str(file))
    server = Server(usage=UsageView(store, "EUR", clock=lambda: NOON), api_keys=keys)

    refused = await server.http.get("/usage")
    reply = await server.http.get("/usage", headers={"Authorization": "Bearer sk-tide-0123456789abcdef"})

    assert refused.status_code == 401
    document = reply.json()
    assert [row["key"] for row in document["data"]] == names
    assert bool(document["unused"]) == admin
    assert document["total"]["gpu_seconds"] == (10.0 if admin else 1.0)


@pytest.mark.parametrize(
    ("params", "param", "problem"),
    [
        ({"since": "yesterday"}, "since", "since = 'yesterday': must be an ISO 8601 date or time"),
        ({"until": "99999999999999"}, "until", "until = '99999999999999': must be"),
        (
            {"since": "2023-11-14", "until": "2d"},
            "since",
            "since = '2023-11-14': must not be after until = '2d'",
        ),
    ],
)
async def test_an_invalid_time_is_named(
    server: Server, params: dict[str, str], param: str, problem: str
) -> None:
    reply = await server.http.get("/usage", params=params)

    assert reply.status_code == 400
    error = error_of(reply)
    assert error["param"] == param
    assert error["message"].startswith(problem)


@pytest.mark.parametrize("params", [{"by": "team"}, {"format": "xml"}, {"since": "1" * 41}])
async def test_other_invalid_parameters_are_refused(server: Server, params: dict[str, str]) -> None:
    reply = await server.http.get("/usage", params=params)

    assert reply.status_code == 422
    assert reply.json()["error"]["param"] == next(iter(params))


async def test_without_a_ledger_there_is_no_usage() -> None:
    assert (await Server().http.get("/usage")).status_code == 404


class HangingLedger:
    """A database that does not answer until the test lets it."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def used(self, *_: object) -> dict[str, Amounts]:
        self.answers.wait()
        return {}

    unused = used


async def test_a_ledger_that_does_not_answer_is_503() -> None:
    ledger = HangingLedger()
    server = Server(usage=UsageView(ledger, "EUR", timeout_s=0.01))

    reply = await server.http.get("/usage")
    ledger.answers.set()

    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "10"
    assert error_of(reply)["message"] == "The ledger did not answer within 0.01 s."


class SlowLedger:
    """A database whose queries for the key `alice` end only when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.begun = threading.Event()
        """Whether a query for `alice` has begun."""
        self.answers = threading.Event()

    def used(
        self, by: str, since: float, until: float, key: str | None = None, most: int = 1000
    ) -> dict[str, Amounts]:
        self.asked.append(key)
        if key == "alice":
            self.begun.set()
            self.answers.wait()
        return {}

    def unused(self, since: float, until: float) -> dict[str, Amounts]:
        return {}


async def test_slow_queries_of_one_key_do_not_delay_others() -> None:
    ledger = SlowLedger()
    view = UsageView(ledger, "EUR")
    reads = [asyncio.create_task(view.read("key", 0.0, NOON, "alice", "alice")) for _ in range(10)]
    try:
        await asyncio.to_thread(ledger.begun.wait)
        for read in reads:  # the clients leave, and the first query goes on
            read.cancel()
        await asyncio.wait(reads)
        reads = [asyncio.create_task(view.read("key", 0.0, NOON, "alice", "alice")) for _ in range(10)]
        await view.read("key", 0.0, NOON, "bob", "bob")
        assert ledger.asked == ["alice", "bob"]
    finally:
        ledger.answers.set()
    await asyncio.gather(*reads)

    assert ledger.asked == ["alice", "bob"] + ["alice"] * 10


async def test_a_ledger_that_cannot_be_read_is_503(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = Server(usage=UsageView(UsageStore(f"sqlite:///{tmp_path}/file/usage.db"), "EUR"))

    reply = await server.http.get("/usage")

    assert reply.status_code == 503
    assert error_of(reply)["message"] == "The ledger cannot be read."


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", NOON - 86_400),
        ("2w", NOON - 14 * 86_400),
        ("999999999d", 0.0),
        ("2023-11-14", 1_699_920_000.0),
        ("2023-11-14T02:00:00+02:00", 1_699_920_000.0),
        ("1699920000.5", 1_699_920_000.5),
    ],
)
def test_times_have_three_forms(text: str, seconds: float) -> None:
    assert parse_time("since", text, NOON) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1", "24 h", "1e400", "nan", "2023-13-01", "0001-01-01"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ApiError, match="must be an ISO 8601"):
        parse_time("since", text, NOON)
