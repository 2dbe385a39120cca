import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator

from loadtests.client.drive import drive_closed
from loadtests.plan import Planned
from loadtests.record import Record, Timekeeping
from loadtests.scenario import Client, Closed
from tests.loadtests.client.driving import ALL, WAIT_S, Scripted, Stub, planned, target


async def closed(
    stub: Stub,
    seed: int,
    how: Closed,
    plan: Iterator[Planned],
    stop: asyncio.Event | None = None,
    beside: Callable[[list[Record]], Coroutine[None, None, None]] | None = None,
) -> tuple[list[Record], Timekeeping]:
    where = target(stub.url, seed=seed)
    records: list[Record] = []
    task = asyncio.create_task(beside(records)) if beside else None
    kept = await drive_closed(
        how,
        plan,
        where,
        Client(),
        time.monotonic() + 0.05,
        records.append,
        stop or asyncio.Event(),
        prompts=Scripted(where, {ALL: {"ttft_s": 0.02, "itl_s": 0.005}}),
    )
    if task is not None:
        await task
    return records, kept


def endless() -> Iterator[Planned]:
    return (planned(index) for index in itertools.count())


async def test_each_stream_sends_its_next_request_when_its_last_is_answered(stub: Stub) -> None:
    records, _ = await closed(stub, 600, Closed(streams=3, for_s=60), map(planned, range(12)))
    assert len(records) == 12
    assert {record.outcome for record in records} == {"answered"}
    assert sorted(record.index for record in records) == list(range(len(records)))
    edges = [(record.at_s, 1) for record in records] + [(record.ended_s, -1) for record in records]
    open_now = list(itertools.accumulate(step for _, step in sorted(edges)))
    assert max(open_now) == 3


async def test_a_stream_pauses_between_an_answer_and_its_next_request(stub: Stub) -> None:
    records, _ = await closed(stub, 602, Closed(streams=1, for_s=60, think_s=0.1), map(planned, range(3)))
    assert len(records) == 3
    assert all(b.at_s - a.ended_s >= 0.1 for a, b in itertools.pairwise(records))


async def test_an_interrupted_run_ends_its_pauses_and_its_requests(stub: Stub) -> None:
    stop = asyncio.Event()

    def plan() -> Iterator[Planned]:
        """Two that are answered, whose streams pause then, and one that is not."""
        yield from map(planned, range(2))
        yield planned(2, output_tokens=100_000)

    async def interrupt(records: list[Record]) -> None:
        while len(records) < 2:
            await asyncio.sleep(0.01)
        stop.set()

    how = Closed(streams=3, for_s=3600, think_s=3600)
    records, _ = await closed(stub, 604, how, plan(), stop, interrupt)
    assert [record.outcome for record in records] == ["answered", "answered", "abandoned"]


async def test_a_stream_does_not_wait_for_a_pause_past_its_end(stub: Stub) -> None:
    async with asyncio.timeout(WAIT_S):
        records, _ = await closed(stub, 605, Closed(streams=2, for_s=1800, think_s=3600), endless())
    assert [record.outcome for record in records] == ["answered"] * 2
