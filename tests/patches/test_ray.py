"""What Tideserve changes of Ray, against the installed Ray."""

import json
import logging
from collections.abc import Iterator
from inspect import signature
from logging.handlers import MemoryHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private.worker import global_worker
from ray.serve._private import application_state
from ray.serve._private.autoscaling_state import DeploymentAutoscalingState
from ray.serve._private.build_app import build_app
from ray.serve._private.cluster_node_info_cache import ClusterNodeInfoCache, DefaultClusterNodeInfoCache
from ray.serve._private.common import DeploymentID, ReplicaID, ReplicaMetricReport, TimeStampedValue
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.deployment_scheduler import DeploymentScheduler, SpreadDeploymentSchedulingPolicy
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve._private.replica import Replica
from ray.serve._private.utils import call_function_from_import_path
from ray.serve._private.version import DeploymentVersion
from ray.serve.config import AutoscalingContext
from ray.serve.schema import LoggingConfig
from ray.util.metrics import Counter
from vllm.logger import configure_logging

from serve_app import env
from serve_app.app import build
from serve_app.patches.ray import (
    accept_until,
    at_most_every,
    is_draining,
    keep_log_handlers,
    metric_reports,
    own_version,
    show_zero,
    stop_first,
)
from serve_app.runner.runner_deployment import BatchRunner


@pytest.fixture
def changed_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Serve's controller with all changes, which are undone afterwards."""
    read = application_state.deploy_args_to_deployment_info
    monkeypatch.setattr(application_state, "deploy_args_to_deployment_info", read)
    monkeypatch.setattr(ClusterNodeInfoCache, "update", ClusterNodeInfoCache.update)
    choose = DeploymentScheduler._get_replicas_to_stop
    monkeypatch.setattr(DeploymentScheduler, "_get_replicas_to_stop", choose)
    call_function_from_import_path(env.ALWAYS["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    """Ray Serve's logger as a replica has it, in a folder of the test."""
    logger = logging.getLogger("ray.serve")
    before, propagates = logger.handlers[:], logger.propagate
    configure_component_logger(
        component_name="Engine",
        component_id="r1",
        logging_config=LoggingConfig(logs_dir=str(tmp_path)),
        max_bytes=1 << 20,
        backup_count=1,
    )
    (handler,) = [one for one in logger.handlers if isinstance(one, MemoryHandler)]
    file = handler.target
    assert isinstance(file, logging.FileHandler)
    yield logger
    handler.close()
    file.close()
    logger.handlers[:], logger.propagate = before, propagates


def configure_vllms_logging() -> None:
    from vllm.config.logging import LoggingConfig as VllmLoggingConfig

    configure_logging(VllmLoggingConfig())


def test_a_replicas_log_survives_vllms_set_up(log: logging.Logger, tmp_path: Path) -> None:
    with keep_log_handlers():
        configure_vllms_logging()
    log.error("after vLLM")

    for handler in log.handlers:
        handler.flush()
    assert any("after vLLM" in file.read_text() for file in tmp_path.iterdir())


def test_a_new_controller_still_learns_where_the_log_is(log: logging.Logger) -> None:
    """It asks each replica it finds; one that fails to answer is stopped."""
    with keep_log_handlers():
        configure_vllms_logging()

    (handler,) = [one for one in log.handlers if isinstance(one, MemoryHandler)]
    assert isinstance(handler.target, logging.FileHandler)  # what `is_allocated` of a replica looks at
    assert handler.target.baseFilename.endswith(".log")


def test_handlers_are_closed_with_the_process_as_ever(log: logging.Logger) -> None:
    registered: list[object] = logging._handlerList  # type: ignore[attr-defined]
    before = registered[:]

    with keep_log_handlers():
        assert registered == []
        added = logging.StreamHandler()

    assert registered[: len(before)] == before
    with pytest.raises(ValueError, match="no such model"), keep_log_handlers():
        raise ValueError("no such model")
    assert registered[: len(before)] == before
    assert any(reference() is added for reference in registered)  # type: ignore[operator]


class Gcs:
    """Counts updates; `lost` makes them fail."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.lost = False

    def update(self, cache: ClusterNodeInfoCache) -> None:
        if self.lost:
            raise TimeoutError
        self.updates.append(cache)


def test_a_cache_is_updated_once_an_interval() -> None:
    gcs, now = Gcs(), [100.0]
    update = at_most_every(1.0, gcs.update, lambda: now[0])
    cache = DefaultClusterNodeInfoCache(None)

    for eighth in range(21):
        now[0] = 100.0 + eighth / 8
        update(cache)

    assert gcs.updates == [cache] * 3  # at 100, 101 and 102
    other = DefaultClusterNodeInfoCache(None)  # it has an interval of its own, which a failure does not begin
    gcs.lost = True
    with pytest.raises(TimeoutError):
        update(other)
    gcs.lost = False
    update(other)
    update(other)
    assert gcs.updates[3:] == [other]


def versions(args: dict[str, Any]) -> dict[str, DeploymentVersion]:
    """The version of each deployment in Ray's controller, after `build` and Ray's own steps."""
    found = {}
    for deployment in build_app(build(args), name="shop").deployments:
        config = deployment._deployment_config
        config.version = json.dumps(args)  # Ray takes a hash of it
        info = application_state.deploy_args_to_deployment_info(
            deployment_name=deployment.name,
            deployment_config_proto_bytes=config.to_proto_bytes(),
            replica_config_proto_bytes=deployment._replica_config.to_proto_bytes(),
            deployer_job_id="01000000",
            app_name="shop",
        )
        found[deployment.name] = DeploymentVersion(
            info.version, info.deployment_config, info.replica_config.ray_actor_options
        )
    return found


@pytest.mark.parametrize(
    ("changed", "restarted"),
    [
        ({"ingress": {"max_ongoing_requests": 150}}, {"Ingress"}),
        ({"http": {"max_body_bytes": 1 << 20}}, {"Ingress", "BatchRunner"}),
        ({"batch": {"max_files_per_key": 7}}, {"Ingress", "BatchRunner"}),
        ({"models": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}, {"Ingress"}),
        ({"models": [{"name": "a"}, {"name": "b", "max_num_seqs": 7}]}, {"Ingress", "Engine-b"}),
        ({"request_log": {"enabled": False}}, {"Ingress", "Engine-a", "Engine-b"}),
        ({}, set()),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("changed_controller")
def test_changed_setting_of_the_ingress_restarts_no_other_deployment(
    changed: dict[str, Any], restarted: set[str]
) -> None:
    args = {"models": [{"name": "a"}, {"name": "b"}]}

    before, after = versions(args), versions(args | changed)

    assert {name for name in before if after[name].requires_actor_restart(before[name])} == restarted
    assert all(before[name] == after[name] for name in before.keys() - restarted)


@pytest.mark.parametrize("unlike_json", [{1, 2}, Path("a")])
def test_deployment_without_plain_arguments_keeps_the_version_of_ray(unlike_json: Any) -> None:
    def engine_of(argument: Any) -> ReplicaConfig:
        return ReplicaConfig.create(BatchRunner, (argument,))

    assert own_version(engine_of({"a": [1, None, "b"]})) is not None
    assert own_version(engine_of(unlike_json)) is None


def test_deployment_of_another_application_keeps_the_version_of_ray() -> None:
    assert own_version(ReplicaConfig.create(dict, ({},))) is None


def test_the_caches_of_rays_controller_ask_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    gcs = Gcs()
    read, choose = (
        application_state.deploy_args_to_deployment_info,
        DeploymentScheduler._get_replicas_to_stop,
    )
    monkeypatch.setattr(application_state, "deploy_args_to_deployment_info", read)  # given back afterwards
    monkeypatch.setattr(DeploymentScheduler, "_get_replicas_to_stop", choose)
    monkeypatch.setattr(ClusterNodeInfoCache, "update", gcs.update)

    call_function_from_import_path(env.ALWAYS["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"])
    cache = DefaultClusterNodeInfoCache(None)
    cache.update()
    cache.update()

    assert gcs.updates == [cache]


@pytest.mark.usefixtures("changed_controller")
def test_named_replicas_are_stopped_first() -> None:
    nodes = DefaultClusterNodeInfoCache(None)
    scheduler = DeploymentScheduler(nodes, "head", lambda: None)
    engine = DeploymentID("Engine-a", "shop")
    scheduler.on_deployment_created(engine, SpreadDeploymentSchedulingPolicy())
    scheduler.on_deployment_deployed(engine, ReplicaConfig.create(dict))
    replicas = [ReplicaID(str(number), engine) for number in range(4)]
    for replica in replicas[:3]:
        scheduler.on_replica_running(replica, "node")

    def stopped(most: int) -> set[str]:
        return {replica.unique_id for replica in scheduler._get_replicas_to_stop(engine, most)}

    assert stopped(1) == {"2"}
    stop_first("shop", "Engine-a", ["0", "gone"])
    assert stopped(1) == {"0"}
    assert "0" in stopped(2)
    scheduler.on_replica_recovering(replicas[3])
    assert stopped(1) == {"0"}  # not the one that does not serve yet, which may be on another node
    assert stopped(2) == {"0", "3"}
    stop_first("shop", "Engine-a", [])
    assert stopped(1) == {"3"}


def test_metric_reports_are_those_of_running_replicas() -> None:
    deployment = DeploymentID("Engine-a", "shop")
    a, b, gone = (ReplicaID(name, deployment) for name in ("a", "b", "gone"))
    state = DeploymentAutoscalingState(deployment)
    state.update_running_replica_ids([a, b])
    for replica in (a, gone):
        series = {"running": [TimeStampedValue(1.0, 2.0)], "waiting": [TimeStampedValue(1.0, 3.0)]}
        state.record_request_metrics_for_replica(ReplicaMetricReport(replica, series, 1.0))
    ctx = AutoscalingContext(
        **dict.fromkeys(list(signature(AutoscalingContext).parameters))
        | {"running_replicas": [a, b], "raw_metrics": state._get_raw_custom_metrics}
    )

    assert metric_reports(ctx) == {a: series}
    assert metric_reports(SimpleNamespace(raw_metrics=ctx.raw_metrics)) == {a: series}


def test_a_counter_is_exported_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[float, dict[str, str]]] = []

    class Core:
        def record(self, value: float, tags: dict[str, str]) -> None:
            recorded.append((value, tags))

    counter: Any = Counter("test_shown_total", "Shown.", tag_keys=("model", "outcome"))
    counter.set_default_tags({"model": "tide"})
    monkeypatch.setattr(counter, "_metric", Core())
    monkeypatch.setattr(counter, "_discard_metric", False)

    show_zero(counter, outcome="ok")

    assert recorded == [(0.0, {"model": "tide", "outcome": "ok"})]


def test_a_process_without_a_replica_does_not_drain() -> None:
    assert not is_draining()


async def test_stopping_replica_keeps_its_port_open_until_it_may_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[tuple[str, bool]] = []
    replica = Replica.__new__(Replica)
    replica._shutting_down = True
    replica._deployment_config = DeploymentConfig()
    monkeypatch.setattr(global_worker, "actors", {"one": SimpleNamespace(_replica_impl=replica)})
    monkeypatch.setattr(Replica, "_drain_behind_haproxy", Replica._drain_behind_haproxy)
    monkeypatch.setattr(replica, "get_num_ongoing_requests", lambda: 0)
    monkeypatch.setattr(
        replica, "_stop_accepting_direct_ingress", lambda: order.append(("refuses", is_draining()))
    )

    async def may_refuse() -> bool:
        order.append(("accepts", is_draining()))
        return False

    accept_until(may_refuse)
    await replica._drain_behind_haproxy(3600.0)  # not waited for: no other replica runs

    assert order == [("accepts", False), ("refuses", True)]
