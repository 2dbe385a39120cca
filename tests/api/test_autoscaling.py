from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.server import Server, error_of

STATUS = {"at": 1_700_000_000.0, "policy_errors": 0, "models": {"Engine-tide": {"target": 2, "ready": 1}}}
KNOBS = {
    "models": {"tide": {"min_replicas": 0}, "org/embed": {"min_replicas": 1}},
    "ingress": {"min_replicas": 1},
    "rejected": "",
}


class StubView:
    """Keeps what the test puts there."""

    def __init__(self) -> None:
        self.said: dict[str, Any] | None = STATUS
        self.rejected = ""
        self.records: list[dict[str, Any]] = []

    def keep(self, *models: str) -> None:
        """A record of each, numbered on."""
        for model in models:
            self.records.append({"seq": len(self.records) + 1, "model": model})

    async def status(self) -> dict[str, Any] | None:
        return self.said

    async def decisions(self) -> list[dict[str, Any]]:
        return list(self.records)

    def age_s(self) -> float | None:
        return None if self.said is None else 0.25

    def knobs(self) -> dict[str, Any]:
        return {**KNOBS, "rejected": self.rejected}


@pytest.fixture
def view() -> StubView:
    return StubView()


@pytest.fixture
async def scaled(view: StubView) -> AsyncIterator[Server]:
    made = Server(autoscaling=view)
    async with made.http:
        yield made


async def numbers(server: Server, **query: str | int) -> list[int]:
    reply = await server.http.get("/autoscaling/decisions", params=query)
    assert reply.status_code == 200, reply.text
    return [record["seq"] for record in reply.json()["decisions"]]


async def test_decisions_come_oldest_first_beside_where_every_model_stands(
    scaled: Server, view: StubView
) -> None:
    view.keep("tide", "org/embed")

    reply = await scaled.http.get("/autoscaling/decisions")

    assert reply.status_code == 200
    assert reply.json() == {
        "knobs_rejected": "",
        "autoscaler": STATUS,
        "decisions": [{"seq": 1, "model": "tide"}, {"seq": 2, "model": "org/embed"}],
        "age_s": 0.25,
    }


async def test_one_models_records_may_be_asked_for(scaled: Server, view: StubView) -> None:
    view.keep("tide", "org/embed", "tide")

    assert await numbers(scaled, model="tide") == [1, 3]
    assert await numbers(scaled, model="org/embed") == [2]


async def test_model_without_records_is_empty_and_unknown_one_404(scaled: Server, view: StubView) -> None:
    assert await numbers(scaled, model="tide") == []

    reply = await scaled.http.get("/autoscaling/decisions", params={"model": "nope"})

    assert reply.status_code == 404
    error = error_of(reply)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"] == "model = 'nope': does not exist."


async def test_a_limit_keeps_the_newest(scaled: Server, view: StubView) -> None:
    view.keep(*["tide", "org/embed"] * 75)

    assert await numbers(scaled, limit=2) == [149, 150]
    assert await numbers(scaled, limit=2, model="tide") == [147, 149]
    assert await numbers(scaled) == list(range(51, 151))


async def test_records_after_one_that_is_known_may_be_asked_for(scaled: Server, view: StubView) -> None:
    view.keep(*["tide"] * 5)

    assert await numbers(scaled, after=3) == [4, 5]
    assert await numbers(scaled, after=5) == []
    assert await numbers(scaled, after=99) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("limit", "0"), ("limit", "10001"), ("limit", "many"), ("after", "-1"), ("after", "1.5")],
)
async def test_a_value_out_of_its_range_is_named(scaled: Server, name: str, value: str) -> None:
    reply = await scaled.http.get("/autoscaling/decisions", params={name: value})

    assert reply.status_code == 422
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", name, "invalid_value")


async def test_the_knobs_are_those_in_force_and_what_was_rejected(scaled: Server) -> None:
    reply = await scaled.http.get("/autoscaling/knobs")

    assert (reply.status_code, reply.json()) == (200, KNOBS)


async def test_where_nothing_scales_there_is_nothing_to_ask(server: Server) -> None:
    for path in ("/autoscaling/decisions", "/autoscaling/knobs"):
        assert error_of(await server.http.get(path))["code"] == "not_found"


async def test_knobs_that_were_given_and_rejected_stand_beside_the_decisions(
    scaled: Server, view: StubView
) -> None:
    view.said, view.rejected = None, "autoscaling['tide'].headroom = 11: must be at most 10"

    reply = await scaled.http.get("/autoscaling/decisions")

    assert reply.json()["knobs_rejected"] == view.rejected
