from pathlib import Path

import pytest

from benchmarks.cold_start.systems import SYSTEMS, Start
from benchmarks.serving_overhead.servers import Engine
from serve_app.settings.tree import AppSettings


def start(system: str, replicas: int = 3, device: str = "cpu") -> Start:
    engine = Engine("org/model", "m", 2048, 64, "bfloat16", True, 1, device)
    return Start(SYSTEMS[system], engine, 64 << 20, replicas, 24, Path("/tmp/cs"), Path("/tmp/cs.log"))


@pytest.mark.parametrize("system", ["tideserve", "no-zygote", "fresh"])
@pytest.mark.parametrize("traces", [None, "http://127.0.0.1:1/v1/traces"])
def test_the_configuration_is_one_that_tideserve_takes(system: str, traces: str | None) -> None:
    (application,) = start(system).configuration(traces)["applications"]

    settings = AppSettings.model_validate(application["args"])

    assert settings.zygote is (system != "no-zygote")
    assert settings.models[0].engine_args.get("otlp_traces_endpoint") == traces
    assert settings.models[0].kv_cache_memory_bytes == 64 << 20


@pytest.mark.parametrize(("system", "least"), [("tideserve", 0), ("fresh", 3)])
def test_a_burst_asks_for_all_replicas(system: str, least: int) -> None:
    (application,) = start(system).configuration(None)["applications"]

    knobs = application["deployments"][0]["user_config"]["autoscaling"]["m"]

    assert (knobs["min_replicas"], knobs["max_replicas"], knobs["queue_target_per_replica"]) == (least, 3, 8)


def test_replicas_share_the_cores_that_ray_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})

    def cpus(replicas: int, device: str = "cpu") -> float | None:
        (application,) = start("tideserve", replicas, device).configuration(None)["applications"]
        found: float | None = application["args"]["models"][0].get("cpus_per_replica")
        return found

    assert (cpus(1), cpus(3), cpus(40), cpus(1, "gpu")) == (1.0, 0.4, 0.1, None)
