import asyncio
import gc
import threading
from pathlib import Path

import pytest
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from serve_app.patches.vllm import InProcessExecutor, forward_at_once, free_shared_memory_early


def output(text: str, finished: bool = False) -> RequestOutput:
    one = CompletionOutput(0, text, [1], None, None)
    return RequestOutput("r", "hi", [1], None, [one], finished)


class Stream:
    """A collector, the texts that its reader got, and those that the reader was spared."""

    def __init__(self) -> None:
        self.takes = True
        self.raises: Exception | None = None
        self.spared: list[str] = []
        self.collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
        forward_at_once(self.collector, self._forward)

    def _forward(self, output: RequestOutput) -> bool:
        if self.raises is not None:
            raise self.raises
        if self.takes:
            self.spared.append(output.outputs[0].text)
        return self.takes

    async def awaited(self) -> "asyncio.Task[RequestOutput]":
        """A reader that waits for the next output."""
        reader = asyncio.create_task(self.collector.get())
        await asyncio.sleep(0)
        return reader


async def test_a_waiting_reader_gets_only_outputs_that_are_not_forwarded() -> None:
    stream = Stream()
    reader = await stream.awaited()
    stream.collector.put(output("a"))
    stream.collector.put(output("b"))
    await asyncio.sleep(0)
    assert not reader.done()
    stream.takes = False
    stream.collector.put(output("c"))

    assert (await reader).outputs[0].text == "c"
    assert stream.spared == ["a", "b"]


async def test_nothing_overtakes_what_the_reader_has_still_to_read() -> None:
    stream = Stream()
    stream.collector.put(output("a"))  # nobody waits yet
    reader = await stream.awaited()
    assert (await reader).outputs[0].text == "a"
    stream.collector.put(output("b"))  # the reader is at work with the one before
    reader = await stream.awaited()
    assert (await reader).outputs[0].text == "b"

    reader = await stream.awaited()
    stream.takes = False
    stream.collector.put(output("c"))
    stream.takes = True
    stream.collector.put(output("d"))  # the reader has been woken, and has not run
    assert (await reader).outputs[0].text == "cd"
    assert stream.spared == []


async def test_what_handing_on_raises_is_for_its_reader_alone() -> None:
    stream = Stream()
    reader = await stream.awaited()
    stream.raises = ValueError("no such text")
    stream.collector.put(output("a"))

    with pytest.raises(ValueError, match="no such text"):
        await reader


async def test_an_error_of_the_engine_reaches_a_reader_that_waits() -> None:
    stream = Stream()
    reader = await stream.awaited()
    stream.collector.put(RuntimeError("the engine is gone"))

    with pytest.raises(RuntimeError, match="the engine is gone"):
        await reader


def test_the_end_of_a_core_collects_no_frozen_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def as_an_engine_core_ends(_: UniProcExecutor) -> None:
        gc.unfreeze()
        found.append(gc.get_freeze_count())

    monkeypatch.setattr(gc, "unfreeze", gc.unfreeze)  # it is put back
    unfreeze = gc.unfreeze
    monkeypatch.setattr(UniProcExecutor, "shutdown", as_an_engine_core_ends)
    InProcessExecutor.shutdown(object.__new__(InProcessExecutor))
    unfreeze()
    assert found[0] > 10_000


def test_shared_memory_has_no_name_once_its_readers_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MessageQueue, "wait_until_ready", MessageQueue.wait_until_ready
    )  # restored at the end
    free_shared_memory_early()
    writer = MessageQueue(1, 1, max_chunk_bytes=1 << 16, max_chunks=2)
    name = Path("/dev/shm", writer.buffer.shared_memory.name)
    assert name.exists()
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    waiting = threading.Thread(target=reader.wait_until_ready)
    waiting.start()
    writer.wait_until_ready()
    waiting.join()

    assert not name.exists()
    writer.enqueue("a step")
    assert reader.dequeue(timeout=60) == "a step"
