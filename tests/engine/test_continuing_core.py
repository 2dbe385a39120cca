"""An engine core is only relied on to continue where the classes that do it are configured."""

import logging
from importlib import import_module
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from serve_app.engine.checking_worker import CheckingWorker
from serve_app.engine.continuing_core import ContinuingWorker, core_continues, let_core_continue
from tests.engine.stub_engine_core import configured


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.fixture
def untouched() -> VllmConfig:
    """A configuration as vLLM makes it."""
    _, _, config = configured()
    config.scheduler_config.scheduler_cls = None
    config.parallel_config.worker_extension_cls = ""
    return config


@pytest.mark.parametrize(("asynchronous", "base"), [(False, Scheduler), (True, AsyncScheduler)])
def test_scheduler_matches_vllms_choice(untouched: VllmConfig, asynchronous: bool, base: type) -> None:
    untouched.scheduler_config.async_scheduling = asynchronous

    let_core_continue(untouched)

    assert core_continues(untouched)
    scheduler = named(str(untouched.scheduler_config.scheduler_cls))
    assert issubclass(scheduler, base)
    assert issubclass(scheduler, AsyncScheduler) == asynchronous
    assert named(untouched.parallel_config.worker_extension_cls) is ContinuingWorker


def test_the_second_model_runner_needs_no_worker_extension(
    untouched: VllmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmConfig, "use_v2_model_runner", True)  # which a CPU has only with Triton

    let_core_continue(untouched)

    assert core_continues(untouched)
    assert untouched.parallel_config.worker_extension_cls == ""


def test_workers_with_adapters_check_them() -> None:
    _, _, config = configured(lora={})

    assert named(config.parallel_config.worker_extension_cls) is CheckingWorker
    assert issubclass(CheckingWorker, ContinuingWorker)


def test_worker_that_cannot_check_adapters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"worker_extension_cls = 'collections\.Counter': `lora`"):
        configured(lora={}, engine_args={"worker_extension_cls": "collections.Counter"})


@pytest.mark.parametrize(
    "own", [{"scheduler_cls": "mine.Scheduler"}, {"worker_extension_cls": "mine.Worker"}]
)
def test_configured_classes_stay_and_the_log_warns(
    own: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ray.serve"):
        _, _, config = configured(engine_args=own)

    assert not core_continues(config)
    set_to = (config.scheduler_config.scheduler_cls, config.parallel_config.worker_extension_cls)
    assert set_to == (own.get("scheduler_cls"), own.get("worker_extension_cls", ""))
    assert "cannot continue the streams" in caplog.text
