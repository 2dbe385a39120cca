"""Exceptions of vLLM that leave the process of an engine."""

import asyncio
import logging
import pickle
import subprocess
import sys

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.engine.ray_process import raise_as_runtime_errors


def test_an_exception_of_vllms_leaves_as_a_runtime_error_that_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "ray.serve"), pytest.raises(RuntimeError) as caught:
        with raise_as_runtime_errors():
            raise EngineDeadError

    assert type(caught.value) is RuntimeError
    assert str(caught.value).startswith("EngineDeadError: ")
    assert caplog.records[0].exc_info is not None


def test_whoever_receives_it_imports_nothing_of_vllm() -> None:
    with pytest.raises(RuntimeError) as caught, raise_as_runtime_errors():
        raise EngineDeadError

    receive = (
        f"import pickle, sys; pickle.loads({pickle.dumps(caught.value)!r}); print('torch' in sys.modules)"
    )
    received = subprocess.run([sys.executable, "-c", receive], capture_output=True, text=True, check=True)
    assert received.stdout.strip() == "False"


def test_a_plain_runtime_error_passes_as_it_is() -> None:
    error = RuntimeError("plain")

    with pytest.raises(RuntimeError) as caught, raise_as_runtime_errors():
        raise error

    assert caught.value is error


def test_a_cancellation_is_no_error() -> None:
    with pytest.raises(asyncio.CancelledError), raise_as_runtime_errors():
        raise asyncio.CancelledError
