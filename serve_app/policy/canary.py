"""Whether a version is worse than the old one, by a test that may look at any time. Pure.

Each rule counts trials and bad trials of both versions, over the same minutes. The evidence against "the new
version is no worse" is the wealth of a gambler who bets on the next counts: an e-process. If the versions are
equal, the wealth exceeds 1/a at any time with probability a at most (Ville). The bound holds for any number
of looks, and while the share of bad trials changes over the day, because each bet is on the trials since the
last one. One bet multiplies the wealth by `MOST_PER_LOOK` at most. So a burst of bad trials with one cause is
not evidence enough.

The bets are those of Turner, Ly and Grünwald (2021, arXiv:2106.02693): likelihood ratios of two shares of bad
trials against their common mean. A part of the wealth is bet on each of `RISES`. Half of the wealth is bet
from the beginning of a comparison, and the rest bit by bit, so a version that turns bad later is found too.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, exp, log, sqrt
from typing import Any, Literal

from serve_app.settings.knobs import CanaryRules
from serve_app.wire.versions import BUCKET_RATIO, ITL, TTFT

FALSE_ALARMS = 0.001
"""The probability of a false alarm of a comparison, all rules and looks together."""
LOOK_S = 2.0
MOST_PER_LOOK = exp(2.5)
RISES = (0.01, 0.03, 0.1, 0.3, 0.7)
"""By how much the share of bad trials may be higher."""
_EARLY = 0.5
_P95 = 0.05
_LEAST_LATENCIES = 40
"""The latencies of the old version from which its P95 is known."""

Rule = Literal["errors", "length", "empty", "tool_calls", "ttft_p95", "itl_p95"]
RULES: tuple[Rule, ...] = ("errors", "length", "empty", "tool_calls", "ttft_p95", "itl_p95")
BAD: Mapping[Rule, tuple[str, str]] = {
    "errors": ("errors", "requests"),
    "length": ("length", "answers"),
    "empty": ("empty", "answers"),
    "tool_calls": ("bad_tool_calls", "tool_calls"),
}
"""The counts of bad trials and of trials."""
_LATENCIES: Mapping[Rule, str] = {"ttft_p95": TTFT, "itl_p95": ITL}
_WORDS: Mapping[Rule, str] = {
    "errors": "requests failed",
    "length": "answers ended at their limit of tokens",
    "empty": "answers were empty",
    "tool_calls": "answers with tool calls had arguments that are not JSON",
    "ttft_p95": "times to first token were above the old version's P95",
    "itl_p95": "inter-token latencies were above the old version's P95",
}

Trials = tuple[float, float]
"""Bad trials, and all trials."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of one rule."""

    wealth: tuple[float, ...] = (0.0,) * len(RISES)
    unspent: float = 1.0
    """The wealth that is not bet yet."""
    new: Trials = (0.0, 0.0)
    old: Trials = (0.0, 0.0)
    bet: tuple[Trials, Trials] = ((0.0, 0.0), (0.0, 0.0))
    """The part of the new and the old version's trials that has been bet on."""

    @property
    def value(self) -> float:
        """How many times less likely an equal version makes such counts."""
        return self.unspent + sum(self.wealth)

    @property
    def rise(self) -> float:
        """By how much the new version's share of bad trials is higher."""
        return rate(self.new) - rate(self.old)

    def learn(self, new: Trials, old: Trials, spend: float) -> "Evidence":
        """Return the evidence after a look. Trials wait for a bet until both versions have some.

        Args:
            new, old: The trials since the last look.
            spend: The part of the wealth to bet from this look on, of the wealth at the beginning.
        """
        spent = min(spend, self.unspent)
        stakes = [each + spent / len(RISES) for each in self.wealth]
        sums, bet = (_sum(self.new, new), _sum(self.old, old)), self.bet
        (bad_new, news), (bad_old, olds) = (
            (after[0] - before[0], after[1] - before[1]) for after, before in zip(sums, bet, strict=True)
        )
        if news and olds:
            usual = (bet[1][0] + 0.5) / (bet[1][1] + 20.0)
            stakes = [
                stake * bet_factor((bad_new, news), (bad_old, olds), usual, rise)
                for stake, rise in zip(stakes, RISES, strict=True)
            ]
            bet = sums
        return Evidence(tuple(stakes), self.unspent - spent, *sums, bet)


def bet_factor(new: Trials, old: Trials, usual: float, rise: float) -> float:
    """Return by what a bet on `usual + rise` instead of `usual` multiplies; at most 1 on average if equal."""
    worse = min(usual + rise, 0.99)
    usual = min(usual, worse - 1e-3)
    mean = (new[1] * worse + old[1] * usual) / (new[1] + old[1])
    gain = sum(
        bad * log(share / mean) + (trials - bad) * log((1.0 - share) / (1.0 - mean))
        for (bad, trials), share in ((new, worse), (old, usual))
    )
    return min(exp(min(gain, 100.0)), MOST_PER_LOOK)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a version with the old one, since its beginning."""

    since: float
    """Unix time in seconds."""
    looked_at: float
    new: Counter[str] = field(default_factory=Counter)
    old: Counter[str] = field(default_factory=Counter)
    """The counts of both versions; see `serve_app.wire.versions`."""
    evidence: Mapping[Rule, Evidence] = field(default_factory=dict)

    def look(self, new: Counter[str], old: Counter[str], rules: CanaryRules, now: float) -> "Comparison":
        """Return the comparison with the counts since the last look."""
        if now - self.since >= rules.window_s:
            return Comparison(now, now)
        spend = (1.0 - _EARLY) * max(0.0, now - self.looked_at) / rules.window_s
        evidence = dict(self.evidence)
        for rule in RULES:
            if (bound := getattr(rules, rule)) is None:
                evidence.pop(rule, None)
                continue
            if (found := self._trials(rule, new, old, bound)) is not None:
                known = evidence.get(rule)
                first = _EARLY if known is None else spend
                evidence[rule] = (known or Evidence()).learn(*found, first)
        return replace(self, looked_at=now, new=self.new + new, old=self.old + old, evidence=evidence)

    def _trials(
        self, rule: Rule, new: Counter[str], old: Counter[str], bound: float
    ) -> tuple[Trials, Trials] | None:
        """Return the trials of a look, of the new and the old version; None while their bound is unknown."""
        if rule in BAD:
            bad, trials = BAD[rule]
            return (new[bad], new[trials]), (old[bad], old[trials])
        kind = _LATENCIES[rule]
        known = buckets(self.old, kind)
        if sum(known.values()) < _LEAST_LATENCIES:
            return None
        usual = quantile_bucket(known, 1.0 - _P95)
        # A version that is slower by less than the ratio counts as equal.
        slower = ceil(log(bound) / log(BUCKET_RATIO))
        return _above(buckets(new, kind), usual + slower), _above(buckets(old, kind), usual)

    def verdict(self, rules: CanaryRules) -> str:
        """Return why the version must lose its share; "" if nothing says so."""
        least = len(RULES) / FALSE_ALARMS
        for rule, found in self.evidence.items():
            tolerated = 0.0 if rule in _LATENCIES else (getattr(rules, rule) or 0.0)
            if found.value >= least and found.rise >= tolerated and getattr(rules, rule) is not None:
                (bad, trials), (old_bad, old_trials) = found.new, found.old
                ratio = f" times {getattr(rules, rule):g}" if rule in _LATENCIES else ""
                return (
                    f"{rule}: {bad:.0f} of {trials:.0f} {_WORDS[rule]}{ratio}, and {old_bad:.0f} of "
                    f"{old_trials:.0f} of the old version. Evidence {found.value:.0f}, bound {least:.0f}."
                )
        return ""

    def document(self) -> dict[str, Any]:
        """Return both versions side by side, as plain data: shares with their 95 % intervals, and means."""
        return {
            "since": round(self.since, 1),
            **{name: _side(counts) for name, counts in (("new", self.new), ("old", self.old))},
            "evidence": {rule: float(f"{found.value:.4g}") for rule, found in self.evidence.items()},
        }


def _side(counts: Counter[str]) -> dict[str, Any]:
    latencies = {}
    for kind in (TTFT, ITL):
        found = buckets(counts, kind)
        for percent in (50, 95):
            latencies[f"{kind}_p{percent}_s"] = quantile_s(found, percent / 100)
    rules: dict[str, Any] = {
        rule: {
            "bad": counts[bad],
            "of": counts[trials],
            "interval": [round(each, 5) for each in wilson(counts[bad], counts[trials])],
        }
        for rule, (bad, trials) in BAD.items()
    }
    tokens = counts["tokens"] / counts["answers"] if counts["answers"] else None
    plain = {name: counts[name] for name in ("requests", "answers", "refused", "rescued", "copies")}
    return {**plain, "tokens_mean": tokens and round(tokens, 1), **latencies, **rules}


def rate(trials: Trials) -> float:
    """Return the share of bad trials; 0 without trials."""
    return trials[0] / trials[1] if trials[1] else 0.0


def wilson(bad: float, trials: float, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share, by default of 95 %; from 0 to 1 without trials."""
    if not trials:
        return 0.0, 1.0
    share, square = bad / trials, z * z / trials
    middle = (share + square / 2) / (1 + square)
    half = z * sqrt(share * (1 - share) / trials + square / (4 * trials)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def buckets(counts: Mapping[str, int], kind: str) -> dict[int, int]:
    """Return the counts of latencies of one kind, by bucket."""
    start = f"{kind}:"
    return {int(name.removeprefix(start)): each for name, each in counts.items() if name.startswith(start)}


def quantile_bucket(found: Mapping[int, int], share: float) -> int:
    """Return the bucket of the least latency that `share` of all latencies do not exceed."""
    left = share * sum(found.values())
    for number in sorted(found):
        left -= found[number]
        if left <= 0:
            return number
    return max(found)


def quantile_s(found: Mapping[int, int], share: float) -> float | None:
    """Return the end of that bucket in seconds; None without latencies."""
    return round(BUCKET_RATIO ** quantile_bucket(found, share), 5) if any(found.values()) else None


def _above(found: Mapping[int, int], number: int) -> Trials:
    return sum(each for at, each in found.items() if at > number), sum(found.values())


def _sum(first: Trials, second: Trials) -> Trials:
    return first[0] + second[0], first[1] + second[1]
