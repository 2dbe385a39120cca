"""Ray Serve's log of a replica, while vLLM sets up its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve.schema import LoggingConfig
from vllm.logger import configure_logging

from serve_app.engine.log_handlers import log_handlers_kept


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
