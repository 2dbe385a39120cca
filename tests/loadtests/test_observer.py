"""What is seen of an application from beside its load."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtests.observer import Observer, counts
from loadtests.record import Sample

EXPOSITION = """
# HELP llm_autoscaling_wanted_replicas x
# TYPE llm_autoscaling_wanted_replicas gauge
llm_autoscaling_wanted_replicas{model="tide",node="a"} 3.0
llm_autoscaling_target_replicas{model="tide"} 2.0
llm_autoscaling_ready_replicas{model="tide"} 1.0
llm_autoscaling_starting_replicas{model="tide"} 1.0
llm_autoscaling_draining_replicas{model="tide"} NaN
llm_held_requests{model="tide",replica="i1"} 4.0
llm_held_requests{model="tide",replica="i2"} 5.0
llm_running_requests{model="tide",replica="e1"} 7.0
llm_running_requests{model="other",replica="e2"} 9.0
llm_running_requests_of_some_kind{model="tide"} 100.0
llm_ttft_seconds_bucket{model="tide",le="0.1"} 3.0
"""

Handler = Callable[[web.Request], Any]


class Application:
    """Answers as an application would, or as the test says."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {
            "/metrics": (200, EXPOSITION),
            "/ready": (200, '{"ready": true, "models": {"tide": {"replicas": 2, "target_replicas": 3}}}'),
            "/autoscaling/decisions": (200, '{"autoscaler": null, "decisions": []}'),
        }

    async def answer(self, request: web.Request) -> web.Response:
        status, text = self.answers.get(request.path, (404, "no"))
        return web.Response(status=status, body=text.encode(errors="surrogateescape"))


@pytest.fixture
async def application() -> Application:
    return Application()


@pytest.fixture
async def observer(application: Application) -> AsyncIterator[Observer]:
    served = web.Application()
    served.router.add_get("/{path:.*}", application.answer)
    async with TestServer(served) as server, aiohttp.ClientSession() as session:
        yield Observer(session, str(server.make_url("/")), ["tide"])


def test_gauges_are_summed_over_the_replicas_of_a_model() -> None:
    assert counts(EXPOSITION) == {
        "tide": {"wanted": 3, "target": 2, "ready": 1, "starting": 1, "held": 9, "running": 7},
        "other": {"running": 9},
    }


async def test_a_sample_is_all_of_one_source(application: Application, observer: Observer) -> None:
    assert await observer.look(12.3456) == [
        Sample(12.346, "tide", wanted=3, target=2, ready=1, starting=1, held=9, running=7)
    ]
    assert observer.problem == ""


async def test_replicas_come_from_ready_without_metrics(application: Application, observer: Observer) -> None:
    application.answers["/metrics"] = (200, 'llm_running_requests{model="tide",replica="e1"} 7.0\n')

    assert await observer.look(1.0) == [Sample(1.0, "tide", target=3, ready=2, starting=1, running=7)]


async def test_unreported_values_are_left_out(application: Application, observer: Observer) -> None:
    application.answers = {}

    assert await observer.look(1.0) == []
    assert observer.problem == "/ready answers 404"
    assert await observer.replicas("tide") is None


@pytest.mark.parametrize("body", ["{", "[]", '{"models": {"tide": {"replicas": "many"}}}', '{"models": 3}'])
async def test_an_answer_that_is_not_ours_is_no_readiness(
    application: Application, observer: Observer, body: str
) -> None:
    application.answers["/ready"] = (200, body)

    assert await observer.replicas("tide") is None


async def test_an_unreadable_exposition_is_a_problem(application: Application, observer: Observer) -> None:
    application.answers["/metrics"] = (200, "llm_held_requests{model=\n")

    samples = await observer.look(1.0)

    assert samples == [Sample(1.0, "tide", target=3, ready=2, starting=1)]
    assert observer.problem.startswith("/metrics is no exposition")


async def test_each_decision_is_kept_once_in_the_order_of_time(
    application: Application, observer: Observer
) -> None:
    def document(*records: tuple[int, float]) -> tuple[int, str]:
        told = ", ".join(f'{{"deployment": "E", "seq": {seq}, "at": {at}}}' for seq, at in records)
        return 200, f'{{"autoscaler": null, "decisions": [{told}]}}'

    application.answers["/autoscaling/decisions"] = document((1, 10.0), (2, 11.0))
    await observer.read_decisions()
    application.answers["/autoscaling/decisions"] = document((2, 11.0), (3, 12.0), (1, 13.0))
    await observer.read_decisions()

    assert [(record["seq"], record["at"]) for record in observer.decisions] == [
        (1, 10.0), (2, 11.0), (3, 12.0), (1, 13.0),
    ]  # fmt: skip
