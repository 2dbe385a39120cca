from collections.abc import AsyncIterator, Iterable
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

    def adapters(self) -> dict[str, dict[str, int]]:
        return {"tide": {"pirate": 2}}

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
        "adapters": {"tide": {"pirate": 2}},
        "age_s": 0.25,
    }


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({}, range(51, 151)),  # the newest 100
        ({"limit": 2}, [149, 150]),
        ({"limit": 2, "model": "tide"}, [147, 149]),
        ({"model": "org/embed", "after": 140}, [142, 144, 146, 148, 150]),
        ({"after": 148}, [149, 150]),
        ({"after": 999}, []),
    ],
    ids=str,
)
async def test_query_chooses_records(
    scaled: Server, view: StubView, query: dict[str, str | int], numbers: Iterable[int]
) -> None:
    view.keep(*["tide", "org/embed"] * 75)

    reply = await scaled.http.get("/autoscaling/decisions", params=query)

    assert [record["seq"] for record in reply.json()["decisions"]] == list(numbers)


async def test_model_without_records_is_empty_and_unknown_one_404(scaled: Server) -> None:
    known = await scaled.http.get("/autoscaling/decisions", params={"model": "tide"})
    assert (known.status_code, known.json()["decisions"]) == (200, [])

    reply = await scaled.http.get("/autoscaling/decisions", params={"model": "nope"})

    assert reply.status_code == 404
    error = error_of(reply)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"] == "model = 'nope': does not exist."


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


async def test_rejected_knobs_stand_beside_the_decisions(scaled: Server, view: StubView) -> None:
    view.said, view.rejected = None, "autoscaling['tide'].headroom = 11: must be at most 10"

    reply = await scaled.http.get("/autoscaling/decisions")

    assert reply.json()["knobs_rejected"] == view.rejected
