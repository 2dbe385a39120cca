"""Policies side by side: their costs, their attainment, and the Pareto front of both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from replay.defaults import GOAL, ORACLE
from replay.result import Result
from serve_app.cli.formats import plain


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy of a comparison. A figure that a peer's summary lacks is None."""

    policy: str
    gpu_seconds: float
    attainment: float
    ttft_ok: float
    oracle_ratio: float | None
    ratio: float | None
    """The main policy's GPU-seconds over this one's: below 1, the main policy is cheaper."""
    starts: float | None = None
    changes: float | None = None
    peak: float | None = None
    dollars: float | None = None
    main: bool = False
    on_front: bool = False
    """No other policy is both cheaper and at least as good."""


def standings(results: Sequence[Result], main: int = 0) -> list[Standing]:
    """Return every policy among `results` and the peers of the main one, cheapest first.

    Raises ValueError without results, or if `main` is not one of them.
    """
    if not 0 <= main < len(results):
        raise ValueError(f"main = {main} must be an index of results, which are {len(results)}")
    ours = results[main]
    rows = [
        replace(_standing(result.policy, result.summary(), ours), main=result is ours) for result in results
    ]
    replayed = {row.policy for row in rows}
    rows += [_standing(name, figures, ours) for name, figures in ours.peers.items() if name not in replayed]
    rows.sort(key=lambda row: row.gpu_seconds)
    return list(_with_front(rows))


def cheapest_peer(rows: Iterable[Standing], goal: float = GOAL) -> Standing | None:
    """Return the cheapest policy that reaches the goal, other than the main one and the oracle."""
    able = [row for row in rows if row.attainment >= goal and not row.main and row.policy != ORACLE]
    return min(able, key=lambda row: row.gpu_seconds, default=None)


def verdict(result: Result, rows: Sequence[Standing]) -> str:
    """Return the result in two sentences, for the head of a report."""
    if not result.requests:
        return "The trace has no requests: there was nothing to attain."
    busy = result.windows.requests > 0
    met = int((result.windows.attained[busy] > 0).sum())
    text = (
        f"Met its latency targets in {met:,} of {int(busy.sum()):,} minutes with traffic, "
        f"for {result.gpu_seconds.total / 3600:,.1f} GPU-hours"
    )
    if result.oracle_ratio is not None:
        text += f", {result.oracle_ratio:.2f} times what a clairvoyant schedule would have paid"
    peer = cheapest_peer(rows)
    if peer is None or peer.ratio is None:
        return f"{text}."
    change = peer.ratio - 1
    words = "as many GPU-seconds as"
    if abs(change) >= 0.005:
        words = f"{100 * abs(change):.0f} % {'fewer' if change < 0 else 'more'} GPU-seconds than"
    which = f"the cheapest other policy that reaches {100 * GOAL:g} %"
    return f"{text}. That is {words} {plain(peer.policy)}, {which}."


def _standing(name: str, figures: Mapping[str, float], main: Result) -> Standing:
    """The standing of a policy by its figures, as `Result.summary` has them."""
    total = figures["gpu_seconds"]
    return Standing(
        policy=name,
        gpu_seconds=total,
        attainment=figures["attainment"],
        ttft_ok=figures["ttft_ok"],
        oracle_ratio=_over(total, main.oracle_gpu_seconds),
        ratio=_over(main.gpu_seconds.total, total),
        starts=figures.get("starts"),
        changes=figures.get("changes"),
        peak=figures.get("peak"),
        dollars=total / 3600.0 * main.price_per_gpu_hour if main.price_per_gpu_hour else None,
    )


def _over(value: float, by: float | None) -> float | None:
    return value / by if by else None


def _with_front(rows: Sequence[Standing]) -> Iterable[Standing]:
    """Yield `rows`, cheapest first, with the Pareto front marked: those better than all cheaper ones."""
    best = -1.0
    for row in sorted(rows, key=lambda row: (row.gpu_seconds, -row.attainment)):
        leads = row.policy != ORACLE and row.attainment > best
        best = max(best, row.attainment) if leads else best
        yield replace(row, on_front=leads)
