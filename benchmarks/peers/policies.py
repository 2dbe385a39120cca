"""The peers' scaling policies, as `tideserve replay --policy` and the benchmarks know them."""

from typing import cast

from benchmarks.peers.dynamo import INTERVAL_S, ITL_S, TTFT_S, DynamoPlanner
from benchmarks.peers.hpa import AibrixApa, HpaKeda, Metric
from benchmarks.peers.knative_kpa import CONCURRENCY, KnativeKpa
from benchmarks.peers.llmd_wva import LlmdWva, LlmdWvaTokens
from benchmarks.peers.ray_default import TARGET_ONGOING_REQUESTS, RayDefault
from replay.policies import Autoscaler, Engines, PolicySpec, Settings, SpecError, one, whole

PUBLISHED = (
    "ray",
    "ray:5",
    "ray:10",
    "kpa:5",
    "hpa:waiting=1",
    "hpa:ongoing=10",
    "apa:5",
    "wva",
    "wva:2",
    "dynamo",
    "dynamo:itl=0.015,ttft=0.15,interval=60",
)
"""The specifications that the benchmark compares, beside static fleets and the oracle."""


def _hpa(settings: Settings, _: Engines) -> Autoscaler:
    metric, target = one(settings, ("ongoing", 10.0))
    return HpaKeda(cast(Metric, metric), target)


def _dynamo(settings: Settings, engines: Engines) -> Autoscaler:
    if engines.step is None:
        raise SpecError("it needs a profile of the engines")
    return DynamoPlanner(
        engines.step,
        itl_s=settings.get("itl", ITL_S),
        ttft_s=settings.get("ttft", TTFT_S),
        interval_s=settings.get("interval", INTERVAL_S),
        max_num_seqs=engines.max_num_seqs,
        max_num_batched_tokens=engines.max_num_batched_tokens,
    )


def _wva(settings: Settings, engines: Engines) -> Autoscaler:
    if whole(settings, 1, 2, usual=1) == 1:
        return LlmdWva()
    return LlmdWvaTokens(engines.max_num_seqs, engines.max_num_batched_tokens)


POLICIES = {
    "ray": PolicySpec(
        "ray[:TARGET]", ("",), lambda given, _: RayDefault(given.get("", TARGET_ONGOING_REQUESTS))
    ),
    "kpa": PolicySpec("kpa[:CONCURRENCY]", ("",), lambda given, _: KnativeKpa(given.get("", CONCURRENCY))),
    "hpa": PolicySpec("hpa[:waiting=TARGET|:ongoing=TARGET]", ("waiting", "ongoing"), _hpa),
    "apa": PolicySpec("apa[:TARGET]", ("",), lambda given, _: AibrixApa(given.get("", 5.0))),
    "dynamo": PolicySpec("dynamo[:itl=S,ttft=S,interval=S]", ("itl", "ttft", "interval"), _dynamo),
    "wva": PolicySpec("wva[:1 or 2]", ("",), _wva),
}
