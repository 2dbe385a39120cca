import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from serve_app.engine.grammar import guard as guard_module
from serve_app.engine.grammar import sandbox as sandbox_module
from serve_app.engine.grammar.compiler import GrammarCompiler
from serve_app.engine.grammar.guard import GrammarGuard
from serve_app.engine.grammar.sandbox import Work
from serve_app.settings.tree import StructuredOutputSettings
from tests.engine.grammar.nasties import FINE, properties
from tests.engine.grammar.test_sandbox import jobs, no_process

ENDLESS = {"regex": "endless"}
SMALL = {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
Make = Callable[[], GrammarCompiler]


def with_endless(make_compiler: Make) -> Callable[[], Work]:
    """Compile jobs, one of which does not end."""

    def prepare() -> Work:
        compiler = make_compiler()

        def work(payload: bytes) -> bytes:
            while b"endless" in payload:
                pass
            return compiler.run(payload)

        return work

    return prepare


@pytest.fixture
async def guard(make_compiler: Make) -> AsyncIterator[GrammarGuard]:
    made = GrammarGuard(with_endless(make_compiler), StructuredOutputSettings(max_compile_s=1))
    made.start()
    yield made
    made.stop()


async def admit(guard: GrammarGuard, fields: dict) -> StructuredOutputsParams:
    params = StructuredOutputsParams(**fields)
    await guard.admit(params)
    return params


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"choice": [str(i) for i in range(2_001)]}, "structured_output.max_choices"),
        ({"json": properties(1_001)}, "structured_output.max_properties"),
        ({"choice": ["\u00e9" * 40_000]}, "structured_output.max_bytes"),
        ({"json": {"type": "array", "uniqueItems": True}}, "structured_output.backend"),
    ],
)
async def test_a_refusal_names_its_setting(guard: GrammarGuard, fields: dict, setting: str) -> None:
    with pytest.raises(VLLMValidationError, match=setting):
        await admit(guard, fields)


@pytest.mark.parametrize("fields", [FINE["a long string"], ENDLESS], ids=["just beyond", "endless"])
async def test_a_compile_beyond_its_time_is_refused(make_compiler: Make, fields: dict) -> None:
    guard = GrammarGuard(
        with_endless(make_compiler), StructuredOutputSettings(max_compile_s=0.001), draw_s=0.3
    )
    try:
        with pytest.raises(VLLMValidationError, match=r"more than 0\.001 s.*structured_output.max_compile_s"):
            await admit(guard, fields)
    finally:
        guard.stop()


async def test_endless_compile_delays_no_other_and_ends_with_client(guard: GrammarGuard) -> None:
    hostile = asyncio.create_task(admit(guard, ENDLESS))
    await jobs(guard.sandbox, 1)

    await admit(guard, SMALL)
    assert not hostile.done()

    hostile.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hostile
    await jobs(guard.sandbox, 0)


async def test_requests_with_the_same_grammar_share_one_job(guard: GrammarGuard) -> None:
    many = [asyncio.create_task(admit(guard, ENDLESS)) for _ in range(100)]
    (job,) = await jobs(guard.sandbox, 1)

    for task in many[1:]:
        task.cancel()
    await asyncio.gather(*many[1:], return_exceptions=True)
    assert await jobs(guard.sandbox, 1) == [job]

    many[0].cancel()
    await jobs(guard.sandbox, 0)
    await asyncio.gather(*many[:1], return_exceptions=True)


async def test_a_verdict_is_remembered(guard: GrammarGuard) -> None:
    first = await admit(guard, {"choice": ["yes", "no"]})
    with pytest.raises(VLLMValidationError):
        await admit(guard, {"regex": "("})
    guard.stop()
    before = guard.sandbox.pid

    again = await admit(guard, {"choice": ["yes", "no"]})
    with pytest.raises(VLLMValidationError):
        await admit(guard, {"regex": "("})
    assert guard.sandbox.pid == before  # no job has started another sandbox
    assert (again.grammar, again.choice, again._backend) == (first.grammar, None, "xgrammar")
    assert again.grammar == 'root ::= "yes" | "no"'


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_a_job_killed_from_outside_is_repeated_once(
    make_compiler: Make, tmp_path: Path, number: signal.Signals
) -> None:
    def prepare() -> Work:
        compiler = make_compiler()

        def work(payload: bytes) -> bytes:
            while not (tmp_path / "go").exists():
                signal.pause()
            return compiler.run(payload)

        return work

    async def kill_job(other_than: psutil.Process | None = None) -> psutil.Process:
        while (found := (await jobs(guard.sandbox, 1))[0]) == other_than:
            await asyncio.sleep(0.01)
        found.send_signal(number)
        return found

    guard = GrammarGuard(prepare, StructuredOutputSettings(max_compile_s=60))
    twice = asyncio.create_task(admit(guard, SMALL))
    await kill_job(other_than=await kill_job())
    if number == signal.SIGSEGV:  # a crash of its own, as for want of memory
        with pytest.raises(VLLMValidationError, match=r"structured_output\.max_compile_bytes"):
            await twice
    else:
        with pytest.raises(GracefulHTTPError, match=f"signal {number:d}; try again") as caught:
            await twice
        assert caught.value.http_status == HTTPStatus.SERVICE_UNAVAILABLE

    once = asyncio.create_task(admit(guard, {"choice": ["ebb"]}))
    (job,) = await jobs(guard.sandbox, 1)
    (tmp_path / "go").touch()
    job.send_signal(number)
    assert (await once)._backend == "xgrammar"
    guard.stop()


async def test_a_job_that_exceeds_its_memory_is_refused_for_good() -> None:
    def prepare() -> Work:
        def work(payload: bytes) -> bytes:
            bytes(512 << 20)
            os.abort()

        return work

    guard = GrammarGuard(prepare, StructuredOutputSettings(max_compile_s=1))
    for _ in range(2):
        with pytest.raises(VLLMValidationError, match=r"structured_output\.max_compile_bytes"):
            await admit(guard, SMALL)
        guard.stop()  # the second refusal needs no job


async def test_slow_compiles_are_admitted_in_turn(
    make_compiler: Make, guard: GrammarGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "_SLOW_S", -1)  # each of them
    await guard._slow.acquire()

    left = asyncio.create_task(admit(guard, SMALL))
    while guard._slow_waiting != 1:
        await asyncio.sleep(0.01)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    again = asyncio.create_task(admit(guard, SMALL))
    while guard._slow_waiting != 1:
        await asyncio.sleep(0.01)

    guard._slow.release()
    await again


@pytest.mark.parametrize(
    ("module", "name", "value", "status"),
    [
        (guard_module, "_SLOW_WAITING", 0, HTTPStatus.TOO_MANY_REQUESTS),
        (guard_module, "_WAITING", 0, HTTPStatus.TOO_MANY_REQUESTS),
        (sandbox_module, "fork_sandbox", no_process, HTTPStatus.SERVICE_UNAVAILABLE),
    ],
    ids=["slow queue", "queue", "no process"],
)
async def test_client_is_asked_to_try_again_when_busy(
    guard: GrammarGuard,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    value: Any,
    status: HTTPStatus,
) -> None:
    if name == "fork_sandbox":
        guard.stop()
    monkeypatch.setattr(guard_module, "_SLOW_S", -1)
    monkeypatch.setattr(module, name, value)

    with pytest.raises(GracefulHTTPError) as caught:
        await admit(guard, SMALL)
    assert caught.value.http_status == status
