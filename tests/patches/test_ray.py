"""What Tideserve changes of Ray, against the installed Ray."""

import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private.worker import global_worker
from ray.serve._private.cluster_node_info_cache import ClusterNodeInfoCache, DefaultClusterNodeInfoCache
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve._private.replica import Replica
from ray.serve._private.utils import call_function_from_import_path
from ray.serve.schema import LoggingConfig
from ray.util.metrics import Counter
from vllm.logger import configure_logging

from serve_app import env
from serve_app.patches.ray import accept_until, at_most_every, is_draining, keep_log_handlers, show_zero


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


def test_the_caches_of_rays_controller_ask_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    gcs = Gcs()
    monkeypatch.setattr(ClusterNodeInfoCache, "update", gcs.update)

    call_function_from_import_path(env.ALWAYS["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"])
    cache = DefaultClusterNodeInfoCache(None)
    cache.update()
    cache.update()

    assert gcs.updates == [cache]


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

    async def may_refuse() -> None:
        order.append(("accepts", is_draining()))

    accept_until(may_refuse)
    await replica._drain_behind_haproxy(0.0)

    assert order == [("accepts", False), ("refuses", True)]
