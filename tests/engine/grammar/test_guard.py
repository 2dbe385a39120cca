import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from serve_app.engine.grammar import guard as guard_module
from serve_app.engine.grammar import nursery_client as client_module
from serve_app.engine.grammar.guard import GrammarGuard, trial_work
from serve_app.engine.grammar.nursery import Work
from serve_app.engine.grammar.trial import Trial
from serve_app.patches.vllm_compat import GracefulHTTPError
from serve_app.settings.tree import StructuredOutputSettings
from tests.engine.grammar.nasties import FINE, TOO_MUCH, properties

ENDLESS = {"regex": "endless"}
SMALL = {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}


def with_endless(make_trial: Callable[[], Trial]) -> Callable[[], Work]:
    """Trials, and one that does not end."""
    prepare = trial_work(make_trial)

    def prepared() -> Work:
        trial = prepare()

        def work(payload: bytes) -> bytes:
            while b"endless" in payload:
                pass
            return trial(payload)

        return work

    return prepared


@pytest.fixture
async def guard(make_trial: Callable[[], Trial]) -> AsyncIterator[GrammarGuard]:
    made = GrammarGuard(with_endless(make_trial), StructuredOutputSettings(max_compile_s=1))
    made.start()
    yield made
    made.stop()


async def admit(guard: GrammarGuard, fields: dict) -> StructuredOutputsParams:
    params = StructuredOutputsParams(**fields)
    await guard.admit(params)
    return params


async def trials(guard: GrammarGuard, count: int) -> list[psutil.Process]:
    """The processes of the trials under way, as soon as there are so many."""
    nursery = psutil.Process(guard._nursery.pid)
    while len(found := nursery.children()) != count:
        await asyncio.sleep(0.01)
    return found


async def test_the_hostile_and_the_malformed_are_refused_and_the_rest_is_let_in(guard: GrammarGuard) -> None:
    async def verdict(fields: dict) -> str:
        try:
            await admit(guard, fields)
        except VLLMValidationError as error:
            return f"refused: {error}"
        return "let in"

    table = {**TOO_MUCH, **FINE}
    found = dict(zip(table, await asyncio.gather(*map(verdict, table.values())), strict=True))

    assert [name for name in TOO_MUCH if found[name] == "let in"] == []
    assert [(name, found[name]) for name in FINE if found[name] != "let in"] == []


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"choice": [str(i) for i in range(2_001)]}, "structured_output.max_choices"),
        ({"json": {"enum": list(range(2_001))}}, "structured_output.max_choices"),
        ({"json": properties(1_001)}, "structured_output.max_properties"),
        ({"regex": "a" * 65_537}, "structured_output.max_bytes"),
        ({"choice": ["\u00e9" * 40_000]}, "structured_output.max_bytes"),
        ({"json": {"type": "array", "uniqueItems": True}}, "structured_output.backend"),
    ],
)
async def test_a_refusal_names_the_setting_that_bounds(
    guard: GrammarGuard, fields: dict, setting: str
) -> None:
    with pytest.raises(VLLMValidationError, match=setting):
        await admit(guard, fields)


@pytest.mark.parametrize("fields", [FINE["a long string"], ENDLESS], ids=["just beyond", "endless"])
async def test_a_compile_beyond_its_time_is_refused(
    make_trial: Callable[[], Trial], monkeypatch: pytest.MonkeyPatch, fields: dict
) -> None:
    monkeypatch.setattr(guard_module, "_WALK_S", 0.3)
    guard = GrammarGuard(with_endless(make_trial), StructuredOutputSettings(max_compile_s=0.001))
    try:
        with pytest.raises(VLLMValidationError, match=r"more than 0\.001 s.*structured_output.max_compile_s"):
            await admit(guard, fields)
    finally:
        guard.stop()


async def test_one_that_does_not_end_holds_up_no_other_and_ends_with_its_client(guard: GrammarGuard) -> None:
    hostile = asyncio.create_task(admit(guard, ENDLESS))
    (process,) = await trials(guard, 1)

    await admit(guard, SMALL)
    assert not hostile.done()

    hostile.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hostile
    await trials(guard, 0)
    assert not process.is_running()


async def test_all_that_wait_for_the_same_share_one_trial(guard: GrammarGuard) -> None:
    many = [asyncio.create_task(admit(guard, ENDLESS)) for _ in range(100)]
    (process,) = await trials(guard, 1)

    for task in many[1:]:
        task.cancel()
    await asyncio.gather(*many[1:], return_exceptions=True)
    assert process.is_running()

    many[0].cancel()
    await trials(guard, 0)
    assert await asyncio.gather(*many[:1], return_exceptions=True)


async def test_a_verdict_is_remembered(guard: GrammarGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await admit(guard, {"choice": ["yes", "no"]})
    with pytest.raises(VLLMValidationError):
        await admit(guard, {"regex": "("})
    monkeypatch.setattr(guard, "_try", None)

    again = await admit(guard, {"choice": ["yes", "no"]})
    with pytest.raises(VLLMValidationError):
        await admit(guard, {"regex": "("})
    assert (again.grammar, again.choice, again._backend) == (first.grammar, None, "xgrammar")
    assert again.grammar == 'root ::= "yes" | "no"'


@pytest.fixture
async def gated(make_trial: Callable[[], Trial], tmp_path: Path) -> AsyncIterator[GrammarGuard]:
    """A guard whose trials wait, to be killed, until the file `go` exists."""
    prepare = trial_work(make_trial)

    def prepared() -> Work:
        trial = prepare()

        def work(payload: bytes) -> bytes:
            while not (tmp_path / "go").exists():
                signal.pause()
            return trial(payload)

        return work

    made = GrammarGuard(prepared, StructuredOutputSettings(max_compile_s=60))  # no bound is in question here
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_a_trial_killed_once_from_outside_is_repeated(
    gated: GrammarGuard, tmp_path: Path, number: signal.Signals
) -> None:
    request = asyncio.create_task(admit(gated, SMALL))
    (process,) = await trials(gated, 1)
    (tmp_path / "go").touch()

    process.send_signal(number)

    assert (await request)._backend == "xgrammar"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_a_trial_killed_twice_is_a_503_and_not_remembered(
    gated: GrammarGuard, tmp_path: Path, number: signal.Signals
) -> None:
    request = asyncio.create_task(admit(gated, SMALL))
    (first,) = await trials(gated, 1)
    first.send_signal(number)
    while (again := await trials(gated, 1))[0] == first:
        await asyncio.sleep(0)
    again[0].send_signal(number)

    with pytest.raises(GracefulHTTPError, match=f"signal {number:d}; try again") as caught:
        await request
    assert caught.value.http_status == HTTPStatus.SERVICE_UNAVAILABLE

    (tmp_path / "go").touch()
    await admit(gated, SMALL)


async def test_a_trial_that_exceeds_its_memory_is_refused_for_good(make_trial: Callable[[], Trial]) -> None:
    """The bound is the model's: no other attempt could pass."""

    def prepared() -> Work:
        def work(payload: bytes) -> bytes:
            bytes(512 << 20)
            os.abort()

        return work

    guard = GrammarGuard(prepared, StructuredOutputSettings(max_compile_s=1))
    guard.start()
    try:
        for _ in range(2):
            with pytest.raises(VLLMValidationError, match=r"structured_output\.max_compile_bytes"):
                await admit(guard, SMALL)
            guard.stop()  # the second refusal needs no trial
    finally:
        guard.stop()


async def test_without_a_nursery_a_trial_is_told_so_and_the_next_one_starts_it(
    guard: GrammarGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object) -> None:
        raise OSError("out of processes")

    guard.stop()
    again = GrammarGuard(guard._nursery._prepare, guard._bounds)
    with monkeypatch.context() as patched:
        patched.setattr(client_module, "fork_nursery", no_process)
        again.start()
        with pytest.raises(GracefulHTTPError) as caught:
            await admit(again, SMALL)
    assert caught.value.http_status == HTTPStatus.SERVICE_UNAVAILABLE

    await admit(again, SMALL)
    again.stop()


async def test_slow_ones_are_let_in_one_after_another_and_not_sooner_for_leaving(
    guard: GrammarGuard, monkeypatch: pytest.MonkeyPatch
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


async def test_slow_ones_beyond_their_queue_are_refused(
    guard: GrammarGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "_SLOW_S", -1)
    monkeypatch.setattr(guard_module, "_SLOW_WAITING", 0)

    with pytest.raises(GracefulHTTPError) as caught:
        await admit(guard, SMALL)
    assert caught.value.http_status == HTTPStatus.TOO_MANY_REQUESTS


async def test_beyond_its_queue_a_trial_is_refused(
    guard: GrammarGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "_WAITING", 0)

    with pytest.raises(GracefulHTTPError) as caught:
        await admit(guard, SMALL)
    assert caught.value.http_status == HTTPStatus.TOO_MANY_REQUESTS


async def test_stopping_leaves_no_process(guard: GrammarGuard) -> None:
    await admit(guard, SMALL)
    nursery = psutil.Process(guard._nursery.pid)

    guard.stop()

    assert not nursery.is_running()
