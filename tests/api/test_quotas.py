"""The limits of keys at one ingress replica, on an explicit clock."""

import heapq
import random
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.engine_client import EngineRequest, Operation, Outcome
from serve_app.api.errors import ApiError
from serve_app.api.quotas import KeyDemand, KeyShare, Quotas, QuotaUse
from serve_app.settings.caller import Caller, Lane
from serve_app.settings.keys_file import ApiKey
from tests.refusal import refusal
from tests.timing import Clock


def key(name: str = "team", **limits: Any) -> ApiKey:
    return ApiKey(name=name, hash="sha256:" + "0" * 64, **limits)


def request(
    body_bytes: int = 400, operation: Operation = "chat_completions", lane: Lane = "standard"
) -> EngineRequest:
    return EngineRequest(operation, b"x" * body_bytes, "r-1", caller=Caller("team", lane))


def end(
    reservation: QuotaUse | None,
    asked: EngineRequest,
    tokens: tuple[int, int | None] | None = None,
    outcome: Outcome = "ok",
    left_engine: bool = False,
) -> None:
    """End a request that had so many prompt and generated tokens."""
    assert reservation is not None
    if tokens is not None:
        asked.counts.input, asked.counts.output = tokens
    asked.outcome, asked.left_engine = outcome, left_engine
    reservation.settle(asked)


def refused(quotas: Quotas, limited: ApiKey, asked: EngineRequest | None = None) -> ApiError:
    error = refusal(quotas.reserve, limited, asked or request(), None)
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    return error


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas(clock: Clock) -> Quotas:
    return Quotas(clock)


def test_a_query_counts_once_for_each_document(quotas: Quotas, clock: Clock) -> None:
    clock.now += 60
    limited = key(tokens_per_minute=6000)
    ranked = EngineRequest("rerank", b"x" * 400, "r-1", repeated_bytes=3600)
    reserved = quotas.reserve(limited, ranked, 0)

    assert left(quotas, limited) == 6000 - 1000
    # The true count replaces the estimate. It says nothing about other bodies: not all models read again.
    end(reserved, ranked, (500, 0))
    other = quotas.reserve(limited, request(400), 0)
    assert other is not None
    assert int(other.headers["x-ratelimit-remaining-tokens"]) == 6000 - 500 - 100


@pytest.mark.parametrize(
    ("tokens_per_minute", "mean_tokens"), [(60_000, 100), (1_000_000, 1000), (6_000, 900)]
)
def test_twice_the_limit_admits_the_limit(
    quotas: Quotas, clock: Clock, tokens_per_minute: int, mean_tokens: int
) -> None:
    draw, limited = random.Random(7), key(tokens_per_minute=tokens_per_minute)
    began, admitted, order = clock.now, 0, count()
    running: list[tuple[float, int, QuotaUse, EngineRequest, tuple[int, int]]] = []
    for _ in range(10_000):
        clock.now += draw.expovariate(2 * tokens_per_minute / 60 / mean_tokens)
        while running and running[0][0] <= clock.now:
            _, _, reservation, asked, tokens = heapq.heappop(running)
            end(reservation, asked, tokens)
        tokens = 1 + int(draw.expovariate(2 / mean_tokens)), 1 + int(draw.expovariate(2 / mean_tokens))
        asked = request(100 + 5 * tokens[0])
        try:
            made = quotas.reserve(limited, asked, 4096)
        except ApiError:
            continue
        assert made is not None
        admitted += sum(tokens)
        heapq.heappush(running, (clock.now + draw.uniform(0, 10), next(order), made, asked, tokens))

    allowed = tokens_per_minute / 60 * (clock.now - began + 60)  # a minute's worth at the start
    assert admitted == pytest.approx(allowed, rel=0.05)


def test_requests_per_minute_are_admitted_at_their_rate(quotas: Quotas, clock: Clock) -> None:
    limited, admitted = key(requests_per_minute=600), 0
    for _ in range(10_000):
        clock.now += 0.05
        try:
            quotas.reserve(limited, request(operation="tokenize"), 0)
        except ApiError:
            continue
        admitted += 1
    assert admitted == pytest.approx(600 + 5_000, rel=0.01)


@pytest.mark.parametrize("idle_s", [0, 3600])
def test_idle_key_may_use_one_minutes_worth_at_once(quotas: Quotas, clock: Clock, idle_s: float) -> None:
    clock.now += idle_s
    limited = key(requests_per_minute=3)
    for _ in range(3):
        quotas.reserve(limited, request(), None)
    refused(quotas, limited)


def test_new_bucket_begins_with_what_others_leave(quotas: Quotas) -> None:
    quotas.share(2, {"team": KeyShare(0.5, 0.5, requests_start=0.2)})
    limited = key(requests_per_minute=10, tokens_per_minute=10_000)
    made = quotas.reserve(limited, request(400), 0)

    assert made is not None
    assert made.headers["x-ratelimit-remaining-requests"] == "2"  # (0.2 * 10 - 1) / 0.5
    assert made.headers["x-ratelimit-remaining-tokens"] == "9800"  # (0.5 * 10,000 - 100) / 0.5


def test_what_a_bucket_lacks_is_reported(quotas: Quotas, clock: Clock) -> None:
    quotas.share(2, {"team": KeyShare(0.5, 0.5)})
    limited, asked = key(requests_per_minute=10, tokens_per_minute=10_000), request(4000)
    end(quotas.reserve(limited, asked, 0), asked, (7000, 0))
    demand = quotas.demands()["team"]
    assert (demand.tokens_missing, demand.requests_missing) == (0.7, 0.1)

    clock.now += 30
    demand = quotas.demands()["team"]
    assert (demand.tokens_missing, demand.requests_missing) == (pytest.approx(0.45), 0.0)


def test_client_that_waits_as_told_is_admitted(quotas: Quotas, clock: Clock) -> None:
    limited = key(tokens_per_minute=60_000)
    large = request(4 * 69_000)
    end(quotas.reserve(limited, large, 0), large)  # 69,000 tokens: nine seconds of debt
    error = refused(quotas, limited)

    assert error.headers["Retry-After-Ms"] == "9001"
    assert error.headers["Retry-After"] == "10"
    assert error.headers["X-Should-Retry"] == "true"
    assert error.message == (
        "API key 'team' has used up its tokens_per_minute = 60000. Try again in 9.001 s."
    )
    clock.now += 9.0
    refused(quotas, limited)
    clock.now += 0.001
    assert quotas.reserve(limited, request(), 0) is not None


def test_wait_above_two_minutes_tells_clients_not_to_retry(quotas: Quotas) -> None:
    limited = key(tokens_per_minute=600)
    large = request(8_000)
    end(quotas.reserve(limited, large, 0), large)
    error = refused(quotas, limited)

    assert int(error.headers["Retry-After"]) > 120
    assert error.headers["X-Should-Retry"] == "false"


def test_answers_tell_the_limits_and_what_is_left(quotas: Quotas, clock: Clock) -> None:
    clock.now += 60
    made = quotas.reserve(key(tokens_per_minute=6_000, requests_per_minute=60), request(), 10)
    assert made is not None
    assert made.headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5890",
        "x-ratelimit-reset-tokens": "2s",
    }


def test_long_reset_is_in_minutes(quotas: Quotas) -> None:
    limited = key(tokens_per_minute=60)
    large = request(4 * 360)
    end(quotas.reserve(limited, large, 0), large)
    assert refused(quotas, limited).headers["x-ratelimit-reset-tokens"] == "6m0s"


def left(quotas: Quotas, limited: ApiKey) -> int:
    """The tokens left, by a request that costs nothing."""
    made = quotas.reserve(limited, request(0), 0)
    assert made is not None
    return int(made.headers["x-ratelimit-remaining-tokens"])


@pytest.mark.parametrize(
    ("tokens", "outcome", "left_engine", "used"),
    [
        ((30, 5), "ok", False, 35),
        ((300, 500), "ok", False, 800),
        ((30, 5), "abandoned", True, 35),
        ((30_200, None), "abandoned", True, 30_200),
        ((30, 5), "client_error", False, 35),  # the engine refused its own answer
        ((30, 5), "error", False, 35),
        (None, "ok", False, 110),
        (None, "abandoned", True, 110),
        (None, "abandoned", False, 0),  # it left the queue
        (None, "rejected", False, 0),
        (None, "error", False, 0),
        (None, "client_error", True, 110),  # its own deadline came
        (None, "client_error", False, 0),
    ],
)
def test_true_count_replaces_the_estimate(
    quotas: Quotas,
    clock: Clock,
    tokens: tuple[int, int | None] | None,
    outcome: Outcome,
    left_engine: bool,
    used: int,
) -> None:
    clock.now += 60
    limited, asked = key(tokens_per_minute=50_000), request(400)
    reservation = quotas.reserve(limited, asked, 10)  # 100 tokens of the prompt and 10 of the answer
    assert left(quotas, limited) == 49_890
    end(reservation, asked, tokens, outcome, left_engine)

    assert left(quotas, limited) == 50_000 - used


def test_estimate_is_the_mean_of_the_keys_answers(quotas: Quotas, clock: Clock) -> None:
    clock.now += 60
    limited = key(tokens_per_minute=100_000)
    for _ in range(100):
        for asked, bound, tokens in (
            (request(600), 4096, (100, 20)),
            (request(9000, "embeddings"), 0, (100, 0)),  # no means of chats
        ):
            end(quotas.reserve(limited, asked, bound), asked, tokens)
    clock.now += 60
    kept = quotas.reserve(limited, request(1200), 4096)

    assert left(quotas, limited) == 100_000 - 220
    del kept


@pytest.mark.parametrize(
    ("operation", "body_bytes", "prompt_tokens", "estimate"),
    [
        ("chat_completions", 8 << 20, 10, 125),  # a field that no engine reads
        ("transcriptions", 79, 4, 1000),  # less than a byte of text
        ("completions", 200, 400, 1000),
        ("completions", 2000, 1000, 500),
    ],
)
def test_bytes_per_token_are_bounded(
    quotas: Quotas, clock: Clock, operation: Operation, body_bytes: int, prompt_tokens: int, estimate: int
) -> None:
    limited = key(tokens_per_minute=1_000_000)
    for _ in range(3):
        asked = request(body_bytes, operation)
        end(quotas.reserve(limited, asked, 0), asked, (prompt_tokens, 0))
    clock.now += 60
    text = 1000 * (80 if operation == "transcriptions" else 1)
    kept = quotas.reserve(limited, request(text, operation), 0)

    assert left(quotas, limited) == 1_000_000 - estimate
    del kept


def test_second_settlement_does_nothing(quotas: Quotas, clock: Clock) -> None:
    clock.now += 60
    limited, asked = key(tokens_per_minute=10_000), request(400)
    reservation = quotas.reserve(limited, asked, 10)
    for _ in range(3):
        end(reservation, asked, (40, 60))
    assert left(quotas, limited) == 9_900


def test_dropped_request_frees_its_place(quotas: Quotas) -> None:
    limited = key(concurrent_requests=1)
    reservation = quotas.reserve(limited, request(), None)
    assert reservation is not None
    del reservation

    assert quotas.reserve(limited, request(), None) is not None


def test_open_requests_are_bounded(quotas: Quotas) -> None:
    limited, asked = key(concurrent_requests=2), [request(), request()]
    made = [quotas.reserve(limited, each, None) for each in asked]
    error = refused(quotas, limited)
    assert (
        error.message == "API key 'team' has 2 open requests (concurrent_requests = 2). Try again in 1.001 s."
    )

    end(made[0], asked[0])
    assert quotas.reserve(limited, request(), None) is not None


def test_open_requests_of_other_replicas_count(quotas: Quotas) -> None:
    limited = key(concurrent_requests=3)
    quotas.share(2, {"team": KeyShare(0.5, 0.5, open_elsewhere=2)})
    made = quotas.reserve(limited, request(), None)
    assert made is not None
    refused(quotas, limited)

    quotas.share(2, {"team": KeyShare(0.5, 0.5)})
    assert quotas.reserve(limited, request(), None) is not None


@pytest.mark.parametrize(("work_conserving", "lane"), [(False, "background"), (True, "standard")])
def test_background_has_open_requests_of_its_own(
    quotas: Quotas, clock: Clock, work_conserving: bool, lane: Lane
) -> None:
    limited = key(concurrent_requests=2, requests_per_minute=1, work_conserving=work_conserving)
    quotas.share(2, {"team": KeyShare(1.0, 1.0, open_elsewhere=1, background_elsewhere=1)})
    within = []
    if work_conserving:  # above its rate, the key goes on in `background`
        within.append(quotas.reserve(limited, request(), None))
    waiting = quotas.reserve(limited, request(lane=lane), None)
    assert refused(quotas, limited, request(lane=lane)).message == (
        "API key 'team' has 2 open requests of the lane background (concurrent_requests = 2). "
        "Try again in 1.001 s."
    )
    clock.now += 120
    if not work_conserving:
        within.append(quotas.reserve(limited, request(), None))
    clock.now += 120
    assert "has 2 open requests (concurrent_requests = 2)" in refused(quotas, limited).message
    assert quotas.demands()["team"].open_requests == quotas.demands()["team"].open_background == 1
    del waiting, within


def test_work_conserving_key_is_served_above_its_rate_without_charge(quotas: Quotas, clock: Clock) -> None:
    limited, within = key(tokens_per_minute=60_000, work_conserving=True), 0
    for _ in range(6_000):  # ten times the limit, for a minute
        clock.now += 0.01
        asked = request(400)
        reservation = quotas.reserve(limited, asked, 0)
        assert reservation is not None
        within += not reservation.over_quota
        end(reservation, asked, (100, 0))
    assert within * 100 == pytest.approx(60_000 + 60_000, rel=0.05)


def test_each_request_above_a_limit_is_counted(clock: Clock) -> None:
    counted: list[tuple[str, str]] = []
    quotas = Quotas(clock, lambda name, limit: counted.append((name, limit)))
    limits = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")
    for limit in limits:
        limited = key(limit, **{limit: 1})
        kept = quotas.reserve(limited, request(), None)
        refused(quotas, limited)
        del kept
    assert counted == [
        (name, name) for name in ("requests_per_minute", "tokens_per_minute", "concurrent_requests")
    ]


def test_changed_limit_is_in_force_at_once(quotas: Quotas, clock: Clock) -> None:
    clock.now += 60
    quotas.reserve(key(requests_per_minute=100), request(), None)
    made = quotas.reserve(key(requests_per_minute=10), request(), None)
    assert made is not None
    assert made.headers["x-ratelimit-remaining-requests"] == "9"


def test_share_bounds_the_rate_of_one_replica(quotas: Quotas, clock: Clock) -> None:
    quotas.share(4, {"team": KeyShare(0.25, 0.25)})
    limited, admitted = key(requests_per_minute=600), 0
    for _ in range(2_000):
        clock.now += 0.05
        try:
            quotas.reserve(limited, request(), None)
        except ApiError:
            continue
        admitted += 1
    assert admitted == pytest.approx(150 + 250, rel=0.02)


def test_demand_counts_refused_attempts_and_fades(quotas: Quotas, clock: Clock) -> None:
    limited = key(requests_per_minute=60, tokens_per_minute=60)
    for _ in range(1_000):
        clock.now += 0.1
        try:
            quotas.reserve(limited, request(400), 0)
        except ApiError:
            continue
    (demand,) = quotas.demands().values()
    assert demand.requests_per_s == pytest.approx(10, rel=0.02)
    assert demand.tokens_per_s == pytest.approx(1_000, rel=0.02)

    clock.now += 120
    assert quotas.demands() == {}


def test_open_requests_are_a_demand(quotas: Quotas) -> None:
    kept = quotas.reserve(key(concurrent_requests=9), request(), None)
    assert quotas.demands() == {"team": KeyDemand(0.0, 0.0, 1)}
    del kept


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 20_000), st.integers(0, 4096), st.booleans()), max_size=60
    ),
    st.integers(60, 100_000),
)
def test_debt_is_at_most_the_requests_that_were_open(
    attempts: list[tuple[float, int, int, bool]], limit: int
) -> None:
    clock = Clock()
    quotas, limited, began, used, largest = Quotas(clock), key(tokens_per_minute=limit), clock.now, 0, 0
    for wait_s, prompt, answer, fails in attempts:
        clock.now += wait_s
        asked = request(prompt * 4)
        try:
            reservation = quotas.reserve(limited, asked, answer)
        except ApiError:
            continue
        end(reservation, asked, None if fails else (prompt, answer), "error" if fails else "ok")
        if not fails:
            used, largest = used + prompt + answer, max(largest, prompt + answer)
    # A minute's worth at the start, and the last request may leave the bucket in debt.
    assert used <= limit / 60 * (clock.now - began + 60) + largest + 1e-6
