"""A replica's log while vLLM sets up its own, and what another process receives of vLLM's exceptions."""

import asyncio
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve.schema import LoggingConfig
from vllm.logger import configure_logging
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.engine.ray_process import log_handlers_kept, told_as_runtime_errors


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


def test_the_replicas_log_goes_on_after_vllm_has_set_up_its_own(log: logging.Logger, tmp_path: Path) -> None:
    with log_handlers_kept():
        configure_vllms_logging()
    log.error("after vLLM")

    for handler in log.handlers:
        handler.flush()
    assert any("after vLLM" in file.read_text() for file in tmp_path.iterdir())


def test_a_new_controller_still_learns_where_the_log_is(log: logging.Logger) -> None:
    """It asks each replica it finds; one that fails to answer is stopped."""
    with log_handlers_kept():
        configure_vllms_logging()

    (handler,) = [one for one in log.handlers if isinstance(one, MemoryHandler)]
    assert isinstance(handler.target, logging.FileHandler)  # what `is_allocated` of a replica looks at
    assert handler.target.baseFilename.endswith(".log")


def test_handlers_are_closed_with_the_process_as_ever(log: logging.Logger) -> None:
    registered: list[object] = logging._handlerList  # type: ignore[attr-defined]
    before = registered[:]

    with log_handlers_kept():
        assert registered == []
        added = logging.StreamHandler()

    assert registered[: len(before)] == before
    assert any(reference() is added for reference in registered)  # type: ignore[operator]


def test_they_are_kept_when_the_start_fails(log: logging.Logger) -> None:
    registered: list[object] = logging._handlerList  # type: ignore[attr-defined]
    before = registered[:]

    with pytest.raises(ValueError, match="no such model"), log_handlers_kept():
        raise ValueError("no such model")

    assert registered == before


def test_an_exception_of_vllms_leaves_as_a_runtime_error_that_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "ray.serve"), pytest.raises(RuntimeError) as caught:
        with told_as_runtime_errors():
            raise EngineDeadError

    assert type(caught.value) is RuntimeError
    assert str(caught.value).startswith("EngineDeadError: ")
    assert caplog.records[0].exc_info is not None


def test_whoever_receives_it_imports_nothing_of_vllm() -> None:
    with pytest.raises(RuntimeError) as caught, told_as_runtime_errors():
        raise EngineDeadError

    receive = (
        f"import pickle, sys; pickle.loads({pickle.dumps(caught.value)!r}); print('torch' in sys.modules)"
    )
    received = subprocess.run([sys.executable, "-c", receive], capture_output=True, text=True, check=True)
    assert received.stdout.strip() == "False"


def test_a_plain_runtime_error_passes_as_it_is() -> None:
    error = RuntimeError("plain")

    with pytest.raises(RuntimeError) as caught, told_as_runtime_errors():
        raise error

    assert caught.value is error


def test_a_cancellation_is_no_error() -> None:
    with pytest.raises(asyncio.CancelledError), told_as_runtime_errors():
        raise asyncio.CancelledError
