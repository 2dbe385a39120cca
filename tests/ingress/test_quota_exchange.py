"""One quota over several ingress replicas, on an explicit clock and a store in memory."""

import asyncio
import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.quotas import KeyDemand, KeyShare, Quotas
from serve_app.ingress.quota_exchange import (
    INTERVAL_S,
    QuotaReports,
    add_up,
    share_of,
    share_quotas,
    shares_of,
)
from serve_app.settings.keys_file import ApiKey
from serve_app.wire.documents import NAMESPACE
from tests.refusal import refusal
from tests.stub_kv import StubKv
from tests.timing import Clock

LIMIT = 150_000
KEY = ApiKey(name="team", hash="sha256:" + "0" * 64, tokens_per_minute=LIMIT, requests_per_minute=10**9)
TOKENS = 100
"""Prompt and answer of each request."""


@dataclass
class Replica:
    """One ingress replica, and the tokens that it has admitted."""

    reports: QuotaReports
    quotas: Quotas
    load: float
    """Attempted tokens in percent of the limit."""
    admitted: int = 0
    refused: int = 0

    def exchange(self) -> None:
        self.quotas.share(*self.reports.exchange(self.quotas.demands()))


@dataclass
class Fleet:
    """Ingress replicas that share one store. A step is 10 ms."""

    clock: Clock = field(default_factory=Clock)
    replicas: dict[str, Replica] = field(default_factory=dict)
    draw: random.Random = field(default_factory=lambda: random.Random(3))

    def join(self, name: str, load: float, clock_ahead_s: float = 0.0) -> None:
        reports = QuotaReports("shop", name, self.clock, lambda: self.clock.now + 1e9 + clock_ahead_s)
        self.replicas[name] = Replica(reports, Quotas(self.clock), load)
        self.replicas[name].exchange()  # before it gets requests

    def use_up(self) -> None:
        """The key uses the minute's worth that all replicas have at the start."""
        for replica in self.replicas.values():
            while not replica.refused:
                self._attempt(replica)
            replica.admitted = replica.refused = 0

    def run(self, seconds: float) -> float:
        """Return the tokens admitted in so many seconds, as a multiple of the limit."""
        before = {name: replica.admitted for name, replica in self.replicas.items()}
        for step in range(round(seconds * 100)):
            for number, replica in enumerate(self.replicas.values()):
                if (step + 7 * number) % round(INTERVAL_S * 100) == 0:  # each at its own moment
                    replica.exchange()
                attempts = replica.load / 100 * LIMIT / 60 / TOKENS / 100
                for _ in range(int(attempts) + (self.draw.random() < attempts % 1)):
                    self._attempt(replica)
            self.clock.now += 0.01
        admitted = sum(replica.admitted - before[name] for name, replica in self.replicas.items())
        return admitted / (LIMIT / 60 * seconds)

    def _attempt(self, replica: Replica) -> None:
        request = EngineRequest("chat_completions", b"x" * 300, "r-1")
        try:
            reservation = replica.quotas.reserve(KEY, request, None)
        except ApiError:
            replica.refused += TOKENS
            return
        assert reservation is not None
        request.counts.input, request.counts.output, request.outcome = 75, 25, "ok"
        reservation.settle(request)
        replica.admitted += TOKENS


@pytest.fixture
def fleet(kv: StubKv) -> Fleet:
    return Fleet()


def settled(fleet: Fleet) -> float:
    """The rate over 30 s, once the replicas have learned of each other."""
    fleet.use_up()
    fleet.run(60)
    return fleet.run(30)


@pytest.mark.parametrize("loads", [(100, 100), (190, 10), (10, 400), (150, 0), (70, 70, 70), (300, 20, 1)])
def test_replicas_together_admit_the_limit(fleet: Fleet, loads: tuple[float, ...]) -> None:
    for number, load in enumerate(loads):
        fleet.join(f"i{number}", load)
    assert settled(fleet) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("loads", [(45, 45), (85, 5)])
def test_below_the_limit_nothing_is_refused(fleet: Fleet, loads: tuple[float, ...]) -> None:
    for number, load in enumerate(loads):
        fleet.join(f"i{number}", load)
    fleet.run(45)
    assert all(replica.refused <= 0.02 * replica.admitted for replica in fleet.replicas.values())


@pytest.mark.parametrize("names", [("i0",), ("i0", "i1")])
def test_restarts_admit_no_more_than_the_limit(fleet: Fleet, names: tuple[str, ...]) -> None:
    for name in names:
        fleet.join(name, 150)
    total = fleet.run(30) * 30
    for restart in range(4):
        for name in list(fleet.replicas):
            del fleet.replicas[name]
        fleet.clock.now += 5
        for name in names:
            fleet.join(f"{name}-{restart}", 150)
        total += fleet.run(10) * 10

    assert total <= 60 + 30 + 4 * 15  # in seconds of the limit: a minute's worth, and what time has filled


def test_new_replicas_admit_no_more_than_the_limit(fleet: Fleet) -> None:
    fleet.join("i0", 300)
    total = fleet.run(3) * 3
    for number in range(1, 8):
        fleet.join(f"i{number}", 300)
        total += fleet.run(3) * 3

    assert total <= (60 + 8 * 3) * 1.05


def test_replica_alone_takes_over_a_debt(fleet: Fleet) -> None:
    fleet.join("i0", 0)
    large = EngineRequest("score", b"x" * 4 * 3 * LIMIT, "r-1")
    kept = fleet.replicas["i0"].quotas.reserve(KEY, large, 0)
    fleet.replicas.pop("i0").exchange()
    fleet.clock.now += 5
    fleet.join("i1", 0)

    error = refusal(fleet.replicas["i1"].quotas.reserve, KEY, large, 0)
    # A debt of 121 s, less the 5 s since its report.
    assert int(error.headers["Retry-After"]) == 116
    del kept


def test_debt_of_one_replica_binds_the_key_at_all_replicas(fleet: Fleet) -> None:
    fleet.join("i0", 0)
    fleet.join("i1", 100)
    large = EngineRequest("score", b"x" * 4 * 3 * LIMIT, "r-1")
    kept = fleet.replicas["i0"].quotas.reserve(KEY, large, 0)

    admitted = fleet.run(120) * 2

    # The debt is 2.5 minutes' worth. Without its share, the other replica would admit two minutes' worth.
    assert admitted < 1.0
    del kept


def test_second_request_at_another_replica_is_served(fleet: Fleet) -> None:
    fleet.join("i0", 0)
    fleet.join("i1", 0)
    request = EngineRequest("score", b"x", "r-1")
    kept = [fleet.replicas["i0"].quotas.reserve(KEY, request, 0)]
    fleet.run(1)

    kept.append(fleet.replicas["i1"].quotas.reserve(KEY, request, 0))
    assert len(kept) == 2


@pytest.mark.parametrize("lost", ["i0", "i1"])  # the first one adds up the reports
def test_share_of_a_lost_replica_goes_to_the_other(fleet: Fleet, lost: str) -> None:
    fleet.join("i0", 100)
    fleet.join("i1", 100)
    fleet.use_up()
    fleet.run(15)
    del fleet.replicas[lost]
    next(iter(fleet.replicas.values())).load = 200

    assert fleet.run(2) < 1.05  # the report of the lost replica still counts
    fleet.run(3)
    assert fleet.run(30) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("clock_ahead_s", [-50, 50])
def test_clocks_apart_keep_the_limit_when_the_writer_is_lost(fleet: Fleet, clock_ahead_s: float) -> None:
    fleet.join("i0", 70)
    fleet.join("i1", 70, clock_ahead_s)
    fleet.join("i2", 70, -clock_ahead_s)
    fleet.use_up()
    fleet.run(15)
    for writer in ("i0", "i1"):
        del fleet.replicas[writer]
        assert fleet.run(5) < 1.05
    fleet.replicas["i2"].load = 200
    assert fleet.run(30) == pytest.approx(1.0, rel=0.05)


def test_late_write_of_a_former_writer_keeps_the_limit(fleet: Fleet, kv: StubKv) -> None:
    for name in ("i0", "i1", "i2"):
        fleet.join(name, 70)
    fleet.use_up()
    fleet.run(15)
    (total,) = [key for key in kv.kept if key[1].startswith(b"quota_total/")]
    late = kv.kept[total]
    del fleet.replicas["i0"]
    fleet.run(5)
    kv.kept[total] = late

    assert fleet.run(5) < 1.05
    assert fleet.run(30) == pytest.approx(1.0, rel=0.05)


def test_bytes_of_a_replica_hardly_grow_with_their_number(kv: StubKv) -> None:
    draw, clock, sizes = random.Random(5), Clock(), dict[int, float]()
    for number in (4, 16, 64):
        fleet = [QuotaReports(f"shop-{number}", f"i{n:07d}", clock, lambda: clock.now) for n in range(number)]
        for _ in range(2):
            kv.bytes = 0
            for each in fleet:
                keys = (f"team-{n}" for n in range(100))
                each.exchange({key: KeyDemand(round(draw.uniform(0, 999), 3), 1.5, 2) for key in keys})
            clock.now += INTERVAL_S
        sizes[number] = kv.bytes / number

    assert sizes[64] < 1.2 * sizes[4]


def test_replica_that_joins_gets_its_share_within_seconds(fleet: Fleet) -> None:
    fleet.join("i0", 200)
    fleet.use_up()
    fleet.run(15)
    fleet.join("i1", 100)
    fleet.replicas["i0"].load = 100

    assert fleet.run(10) == pytest.approx(1.0, rel=0.1)
    assert fleet.run(30) == pytest.approx(1.0, rel=0.05)
    first, second = (replica.admitted for replica in fleet.replicas.values())
    fleet.run(30)
    gained = [
        replica.admitted - before
        for replica, before in zip(fleet.replicas.values(), (first, second), strict=True)
    ]
    assert gained[0] == pytest.approx(gained[1], rel=0.1)


@pytest.mark.parametrize(("load", "share"), [(50, 0.25), (0, 0.5)])  # new demand will get an equal share
def test_wait_is_told_by_the_share_of_its_replica(fleet: Fleet, load: float, share: float) -> None:
    fleet.join("i0", 150)
    fleet.join("i1", load)
    fleet.run(30)
    fleet.use_up()
    fleet.clock.now += 5
    quotas, minutes_worth = fleet.replicas["i1"].quotas, EngineRequest("score", b"x" * 4 * LIMIT, "r-1")
    kept = quotas.reserve(KEY, minutes_worth, 0)
    error = refusal(quotas.reserve, KEY, minutes_worth, 0)
    del kept

    assert int(error.headers["Retry-After"]) == pytest.approx(60 / share, rel=0.25)


def test_store_that_fails_leaves_the_last_shares(fleet: Fleet, kv: StubKv) -> None:
    fleet.join("i0", 100)
    fleet.join("i1", 100)
    fleet.use_up()
    fleet.run(15)
    for replica in fleet.replicas.values():
        replica.reports.exchange = lambda demands: (2, {"team": KeyShare(0.5, 0.5)})  # type: ignore[method-assign]
    assert fleet.run(30) == pytest.approx(1.0, rel=0.05)


async def test_failure_of_the_store_is_logged_once_and_ends(
    kv: StubKv, caplog: pytest.LogCaptureFixture
) -> None:
    quotas = Quotas()
    kv.fails = ConnectionError("no GCS")
    asked = 0

    def is_needed() -> bool:
        nonlocal asked
        asked += 1
        if asked == 5:
            kv.fails = None
        return True

    task = asyncio.create_task(share_quotas(QuotaReports("shop", "i0"), quotas, is_needed, 0))
    async with asyncio.timeout(10):
        while asked < 8:
            await asyncio.sleep(0)
    task.cancel()
    assert [record.message for record in caplog.records] == ["the quotas of API keys cannot be exchanged"]


async def test_nothing_is_exchanged_without_limits(kv: StubKv) -> None:
    asked = 0

    def is_needed() -> bool:
        nonlocal asked
        asked += 1
        return False

    task = asyncio.create_task(share_quotas(QuotaReports("shop", "i0"), Quotas(), is_needed, 0))
    async with asyncio.timeout(10):
        while asked < 5:
            await asyncio.sleep(0)
    task.cancel()
    assert kv.written == kv.calls == []


def test_report_of_a_killed_replica_is_erased(kv: StubKv) -> None:
    def kept() -> list[bytes]:
        return [key for _, key in kv.kept if key.startswith(b"quotas/")]

    clock = Clock()
    alive, killed = (QuotaReports("shop", name, clock, lambda: clock.now) for name in ("i0", "i1"))
    killed.exchange({"team": KeyDemand(1.0, 1.0, 3)})
    assert alive.exchange({})[1]["team"].open_elsewhere == 3
    clock.now += 3
    assert alive.exchange({})[1]["team"].open_elsewhere == 0
    assert len(kept()) == 2
    clock.now += 60
    assert alive.exchange({}) == (1, {})
    assert len(kept()) == 1


@pytest.mark.parametrize(
    "document",
    [b"\x00", b"[]", b"{}", b"[1]", b"[NaN, {}]", b'[1, {"a": [NaN, 1, 0]}]', b'[1, {"a": ["1", 1, 0]}]'],
)
def test_unreadable_report_is_left_out(kv: StubKv, document: bytes) -> None:
    kv._internal_kv_put("quotas/shop/i9", document, overwrite=True, namespace=NAMESPACE)

    own = KeyDemand(1.0, 1.0, 0)
    assert QuotaReports("shop", "i0").exchange({"team": own}) == (1, {"team": KeyShare(1.0, 1.0, own=own)})


DEMANDS = st.lists(st.floats(0, 1e9), min_size=1, max_size=20)


def divided(demands: list[float], idle: int = 0) -> list[float]:
    """Every replica's share, as each computes its own."""
    return [
        share_of(own, sum(demands[:at] + demands[at + 1 :]), len(demands) + idle)
        for at, own in enumerate(demands)
    ]


@given(DEMANDS)
def test_shares_add_up_to_the_whole(demands: list[float]) -> None:
    shares = divided(demands)

    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) >= 0.019 / len(demands)


@given(DEMANDS)
def test_more_demand_never_gets_a_smaller_share(demands: list[float]) -> None:
    for less, more in pairwise(sorted(zip(demands, divided(demands), strict=True))):
        assert less[1] <= more[1] * (1 + 1e-9)


@given(st.lists(st.floats(1, 2), min_size=1, max_size=20))
def test_shares_are_in_proportion_to_demand(demands: list[float]) -> None:
    # All replicas share 2 % equally.
    assert divided(demands) == [pytest.approx(demand / sum(demands), rel=0.02) for demand in demands]


@given(DEMANDS, st.integers(1, 20))
def test_replica_without_demand_counts_as_one_with_zero(demands: list[float], idle: int) -> None:
    assert divided(demands, idle) == pytest.approx(divided(demands + [0.0] * idle)[: len(demands)])


def test_each_limit_of_a_key_is_divided_by_its_own_demand() -> None:
    own = {"a": KeyDemand(300.0, 1.0, 2, 4)}
    total = add_up([own, {"a": KeyDemand(100.0, 3.0, 5, 7)}, {}])
    share = shares_of(own, total, own, 3)["a"]

    assert share.tokens == pytest.approx(0.75, rel=0.02)
    assert share.requests == pytest.approx(0.25, rel=0.02)
    assert (share.open_elsewhere, share.background_elsewhere) == (5, 7)
