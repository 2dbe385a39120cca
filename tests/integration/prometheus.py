"""Reading `/metrics`, which lags by up to two export intervals, and is made anew twice a second."""

import time

import httpx
from prometheus_client.parser import text_string_to_metric_families

FAST_EXPORT = {"RAY_metrics_report_interval_ms": "200", "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "200"}
"""The environment of a server whose metrics are at most 0.9 s old."""
READ_EACH_S = 0.5


def samples(http: httpx.Client) -> dict[tuple[str, str], float]:
    """Sum of every series by (sample name, model)."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("model", ""))
            found[key] = found.get(key, 0.0) + sample.value
    return found


def settled(http: httpx.Client, *models: str, above: float = -1.0) -> dict[tuple[str, str], float]:
    """The metrics of a server with `FAST_EXPORT`, once `models` are idle and three token counts agree.

    The count must be greater than `above`, which was the count before requests that have been answered.
    """
    gauges = ("llm_running_requests", "llm_waiting_requests")
    readings: list[float] = []
    for _ in range(int(60 / READ_EACH_S)):
        now = samples(http)
        busy = sum(now.get((gauge, model), 0.0) for gauge in gauges for model in models)
        readings.append(sum(now.get(("llm_completion_tokens_total", model), 0.0) for model in models))
        if not busy and readings[-1] > above and len(readings) > 2 and len(set(readings[-3:])) == 1:
            return now
        time.sleep(READ_EACH_S)
    raise AssertionError(f"{models} did not come to rest: {readings[-5:]}")
