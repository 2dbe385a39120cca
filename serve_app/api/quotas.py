"""Limits of API keys: requests per minute, tokens per minute, and requests that are open at once.

Each rate is a token bucket, filled at the rate, up to one minute's worth. It begins full, less what has been
used at other ingress replicas. A request is admitted while the bucket has anything left, and may leave the
bucket in debt. So a request larger than a minute's worth is served too. Further requests are refused until
the debt is paid.

The tokens of a request are not known when it arrives. So its bucket is charged with an estimate, and the true
count replaces the estimate at the end. The engine tells the tokens of a stream's prompt with the first
output, so a client that leaves pays for them too. The estimate of the prompt is the size of the body divided
by the key's mean bytes per prompt token. The estimate of the answer is the key's mean answer, at most the
request's `max_tokens`. Each model and operation has its own means, because embeddings have no answers. With a
charge of `max_tokens` itself, a client that asks for 4,096 tokens and gets 200 would be far below its limit.

Ingress replicas share one quota: each has a share of every rate (`ingress.quota_exchange`).
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest
from serve_app.api.errors import MOST_RETRY_S, ApiError
from serve_app.settings.keys_file import ApiKey
from serve_app.wire.signals import BYTES_PER_TOKEN

_MINUTE_S = 60.0
_DEMAND_S = 5.0
"""The time constant of the demand: attempts of 5 s ago count a third of new ones."""
_OPEN_RETRY_S = 1.0
_ALMOST_ONE = 0.999
"""Added before `int`, to round up. It is below 1, so a rounding error of floats does not add a second."""
_ANSWER_TOKENS = 256.0
"""The estimate for a key without an answer yet."""
_LEAST_BYTES, _MOST_BYTES = 1.0, 8.0
"""The bounds on the bytes per token of one request. A body may also have media, and fields without effect."""
_MEMORY = 32
"""A mean covers about this many requests."""


class KeyDemand(msgspec.Struct, frozen=True, array_like=True):
    """The recent attempts of one key at one ingress replica, refused ones included."""

    tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    open_requests: int = 0
    """Without the lane `background`."""
    open_background: int = 0
    tokens_missing: float = 0.0
    """The part of a minute's worth that its bucket lacks."""
    requests_missing: float = 0.0


NO_DEMAND = KeyDemand()


@dataclass(frozen=True, slots=True)
class KeyShare:
    """One ingress replica's share of a key's limits."""

    tokens: float
    """Its share of the tokens per minute, 0 to 1."""
    requests: float
    open_elsewhere: int = 0
    """The key's open requests at other ingress replicas, without the lane `background`."""
    background_elsewhere: int = 0
    own: KeyDemand = NO_DEMAND
    """The demand at this replica that decided its share."""
    tokens_start: float = 1.0
    """The part of a minute's worth with which a new bucket begins, at most its share."""
    requests_start: float = 1.0


_WHOLE = KeyShare(1.0, 1.0)


class _Bucket:
    """One rate of a key, as far as this ingress replica may use it.

    Args:
        what: `requests` or `tokens`.
        limit: Amount per minute over all ingress replicas.
        start: See `KeyShare`.
        now: When the bucket begins.
    """

    __slots__ = ("_at", "_headers", "demand", "level", "limit", "share", "what")

    def __init__(self, what: str, limit: int, share: float, start: float, now: float) -> None:
        self.what = what
        self.limit = limit
        self.share = share
        self.level = limit * min(share, start)
        """The amount left; below 0 it is a debt."""
        self.demand = 0.0
        """Attempted amount per second."""
        self._at = now
        self._headers = tuple(f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset"))

    def advance(self, now: float) -> None:
        passed_s, self._at = now - self._at, now
        most = self.limit * self.share
        level = self.level + most * passed_s / _MINUTE_S
        self.level = level if level < most else most
        self.demand *= math.exp(-passed_s / _DEMAND_S)

    def report(self, now: float) -> tuple[float, float]:
        """Fill the bucket. Return the demand, and the part of a minute's worth that the bucket lacks."""
        self.advance(now)
        demand = self.demand + max(0.0, -self.level) / _MINUTE_S  # a share of the limit pays the debt
        return round(demand, 3), round(max(0.0, self.share - self.level / self.limit), 6)

    def attempt(self, now: float, amount: float) -> None:
        """Fill the bucket, and count an attempt, admitted or not."""
        self.advance(now)
        self.demand += amount / _DEMAND_S

    def wait_s(self, share: float) -> float:
        """Return the seconds until the bucket has anything left, with this share; 0 if it has now."""
        return max(0.0, -self.level * _MINUTE_S / (self.limit * share))

    def add_headers(self, headers: dict[str, str]) -> None:
        """Add OpenAI's headers of this rate. This replica estimates the whole quota from its own share.

        The reset is a duration such as `1s` or `6m0s`.
        """
        left, limit = self.level / self.share, self.limit
        reset_s = int(_MINUTE_S - _MINUTE_S * left / limit + _ALMOST_ONE)
        limit_name, remaining_name, reset_name = self._headers
        headers[limit_name] = f"{limit}"
        headers[remaining_name] = f"{int(left)}" if left > 0.0 else "0"
        headers[reset_name] = f"{reset_s}s" if reset_s < _MINUTE_S else f"{reset_s // 60}m{reset_s % 60}s"


_Rates = list[tuple[_Bucket, float]]
"""The rates that apply to a request, each with the amount that the request needs."""


class _Means:
    """What the estimates of one key need, for one model and operation."""

    __slots__ = ("_answers", "answer_tokens", "bytes_per_token")

    def __init__(self) -> None:
        self.answer_tokens = _ANSWER_TOKENS
        self.bytes_per_token = float(BYTES_PER_TOKEN)
        self._answers = 0

    def learn(self, prompt_bytes: int, input_tokens: int | None, output_tokens: int) -> None:
        self._answers += 1
        weight = 1.0 / min(self._answers, _MEMORY)
        self.answer_tokens += weight * (output_tokens - self.answer_tokens)
        if input_tokens:
            ratio = min(max(prompt_bytes / input_tokens, _LEAST_BYTES), _MOST_BYTES)
            self.bytes_per_token += weight * (ratio - self.bytes_per_token)


class _KeyQuota:
    """The limits of one key, and the means that its estimates need."""

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.buckets: dict[str, _Bucket] = {}
        """By the limited amount: `requests`, `tokens`."""
        self.open_requests = {False: 0, True: 0}
        """Of the lane `background` (True), which may wait for hours, and of the other lanes."""
        self.share = _WHOLE
        self.means: defaultdict[tuple[str, str], _Means] = defaultdict(_Means)
        """By model and operation."""

    def follow(self, key: ApiKey, share: KeyShare, now: float) -> None:
        """Apply the key's present limits, and this replica's share of them."""
        self.key, self.share = key, share
        for what, limit, part, start in (
            ("requests", key.requests_per_minute, share.requests, share.requests_start),
            ("tokens", key.tokens_per_minute, share.tokens, share.tokens_start),
        ):
            if limit is None:
                self.buckets.pop(what, None)
            elif (bucket := self.buckets.get(what)) is None:
                self.buckets[what] = _Bucket(what, limit, part, start, now)
            else:
                bucket.advance(now)
                bucket.limit, bucket.share = limit, part


class QuotaUse:
    """The place of one open request in its key's limits. It ends with `settle`, or when it is dropped."""

    __slots__ = ("_answer", "_background", "_ended", "_prompt", "_quota", "headers", "over_quota")

    def __init__(
        self,
        quota: _KeyQuota,
        prompt: float,
        answer: float,
        over_quota: bool,
        background: bool,
        headers: dict[str, str],
    ) -> None:
        self._quota = quota
        self._prompt, self._answer = prompt, answer
        self._background = background
        self._ended = False
        quota.open_requests[background] += 1
        self.over_quota = over_quota
        """Whether the request is served although its key is above a rate. It is charged to no bucket."""
        self.headers = headers
        """Headers of the answer."""

    def settle(self, request: EngineRequest) -> None:
        """End the use. The true count of tokens replaces the estimate.

        A request that no engine computed gets its tokens back. If the client of a stream left, or its
        deadline came, the prompt and the delivered tokens count. If no engine has told the tokens, the
        estimate stays, unless the request failed or no engine had it.
        """
        used = 0.0
        counts = request.counts
        if counts.input is not None or counts.output is not None:
            used = (self._prompt if counts.input is None else counts.input) + (counts.output or 0)
            # Of pairs of texts, a cross-encoder reads the query once a document, another model once.
            if request.outcome == "ok" and counts.output is not None and not request.repeated_bytes:
                means = self._quota.means[request.model, request.operation]
                means.learn(request.prompt_bytes, counts.input, counts.output)
        elif request.outcome == "ok" or request.left_engine:
            used = self._prompt + self._answer
        self._end(used)

    def __del__(self) -> None:
        # A response that is dropped before it is sent must free its place.
        self._end(0.0)

    def _end(self, used: float) -> None:
        if self._ended:
            return
        self._ended = True
        self._quota.open_requests[self._background] -= 1
        if not self.over_quota and (tokens := self._quota.buckets.get("tokens")) is not None:
            tokens.level += self._prompt + self._answer - used


class Quotas:
    """The quotas of all keys at one ingress replica. Use it in one event loop.

    Args:
        clock: Seconds on a clock that never goes back.
        on_limited: Called with the key's name and the limit, for each request above a limit.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_limited: Callable[[str, str], None] = lambda key, limit: None,
    ) -> None:
        self.clock = clock
        self._on_limited = on_limited
        self._quotas: dict[str, _KeyQuota] = {}
        self._shares: Mapping[str, KeyShare] = {}
        self._equal = _WHOLE

    def reserve(
        self, key: ApiKey, request: EngineRequest, bound: int | None, most: float = math.inf
    ) -> QuotaUse:
        """Return the request's place in the limits of its key.

        Args:
            key: The entry of the client's key, which has limits.
            request: A request whose body has been read.
            bound: The most tokens of its answer; None if the request has no bound.
            most: The most tokens of its prompt. An image may take megabytes.

        Raises:
            ApiError: 429 if a limit is reached. A `work_conserving` key gets 429 only for too many open
                requests.
        """
        now = self.clock()
        quota = self._quota(key, now)
        prompt = answer = 0.0
        rates = [(bucket, 1.0) for what, bucket in quota.buckets.items() if what == "requests"]
        if request.operation in GPU_OPERATIONS:
            means = quota.means[request.model, request.operation]
            prompt = min(request.prompt_bytes / means.bytes_per_token, most)
            answer = means.answer_tokens if bound is None else min(means.answer_tokens, bound)
            if (tokens := quota.buckets.get("tokens")) is not None:
                rates.append((tokens, prompt + answer))
        over = False
        for bucket, amount in rates:
            bucket.attempt(now, amount)
            over = over or bucket.level <= 0.0
        background = request.caller.lane == "background" or (over and key.work_conserving)
        self._check_open(quota, rates, background)
        if over:
            self._limit(quota, rates)
        else:
            for bucket, amount in rates:
                bucket.level -= amount
        return QuotaUse(quota, prompt, answer, over, background, _headers(rates))

    def demands(self) -> dict[str, KeyDemand]:
        """Return the demand of each key that has any, or has used a limit, for the other ingress replicas."""
        now = self.clock()
        found = {}
        for name, quota in self._quotas.items():
            reports = {what: bucket.report(now) for what, bucket in quota.buckets.items()}
            tokens, requests = reports.get("tokens", (0.0, 0.0)), reports.get("requests", (0.0, 0.0))
            opened = quota.open_requests
            demand = KeyDemand(tokens[0], requests[0], opened[False], opened[True], tokens[1], requests[1])
            if demand != NO_DEMAND:
                found[name] = demand
        return found

    def share(self, replicas: int, shares: Mapping[str, KeyShare]) -> None:
        """Apply this replica's shares.

        Args:
            replicas: The number of ingress replicas, this one included.
            shares: By key. Every other key is shared equally.
        """
        self._equal = KeyShare(1.0 / replicas, 1.0 / replicas)
        self._shares = shares
        now = self.clock()
        for name, quota in self._quotas.items():
            quota.follow(quota.key, shares.get(name, self._equal), now)

    def _quota(self, key: ApiKey, now: float) -> _KeyQuota:
        quota = self._quotas.get(key.name)
        if quota is None:
            quota = self._quotas[key.name] = _KeyQuota(key)
        elif quota.key is key:
            return quota
        quota.follow(key, self._shares.get(key.name, self._equal), now)
        return quota

    def _check_open(self, quota: _KeyQuota, rates: _Rates, background: bool) -> None:
        """Raise ApiError 429 if the key has as many open requests as it may, in `background` or elsewhere."""
        limit, share = quota.key.concurrent_requests, quota.share
        elsewhere = share.background_elsewhere if background else share.open_elsewhere
        open_requests = quota.open_requests[background] + elsewhere
        if limit is not None and open_requests >= limit:
            self._on_limited(quota.key.name, "concurrent_requests")
            of_lane = " of the lane background" if background else ""
            why = f"has {open_requests} open requests{of_lane} (concurrent_requests = {limit})."
            raise _refusal(quota.key, why, _OPEN_RETRY_S, rates)

    def _limit(self, quota: _KeyQuota, rates: _Rates) -> None:
        """Count a request above a rate. Raise ApiError 429 unless the key may go on without a charge."""
        wait_s, bucket = max(
            ((bucket.wait_s(self._coming_share(quota, bucket)), bucket) for bucket, _ in rates),
            key=lambda pair: pair[0],
        )
        limit = f"{bucket.what}_per_minute"
        self._on_limited(quota.key.name, limit)
        if not quota.key.work_conserving:
            raise _refusal(quota.key, f"has used up its {limit} = {bucket.limit}.", wait_s, rates)

    def _coming_share(self, quota: _KeyQuota, bucket: _Bucket) -> float:
        """Return the share with which the bucket will be filled. New demand gets a share within a second."""
        own = quota.share.own
        known = own.tokens_per_s if bucket.what == "tokens" else own.requests_per_s
        return bucket.share if known else max(bucket.share, self._equal.tokens)


def _headers(rates: _Rates) -> dict[str, str]:
    headers: dict[str, str] = {}
    for bucket, _ in rates:
        bucket.add_headers(headers)
    return headers


def _refusal(key: ApiKey, why: str, wait_s: float, rates: _Rates) -> ApiError:
    """Return a 429 that tells the client to try again after `wait_s`."""
    wait_ms = math.floor(wait_s * 1e3) + 1  # after exactly `wait_s` the bucket is still empty
    return ApiError(
        429,
        f"API key {key.name!r} {why} Try again in {wait_ms / 1e3:g} s.",
        code="rate_limit_exceeded",
        headers={
            **_headers(rates),
            "Retry-After": str(math.ceil(wait_ms / 1e3)),
            "Retry-After-Ms": str(wait_ms),
            "X-Should-Retry": "true" if wait_ms <= MOST_RETRY_S * 1e3 else "false",
        },
    )
