from typing import Any

import pytest

from serve_app.ingress.knob_applier import KnobApplier
from serve_app.ingress.policy_view import PolicyView
from serve_app.settings.knobs import LiveKnobs
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.wire.documents import DECISIONS, STATUS, put_document
from tests.stub_kv import StubKv


class View:
    """A view, the policy's documents, and a clock."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        publisher = KnobApplier("shop", AppSettings(models=(ModelSettings(name="tide"),)), LiveKnobs({}))
        self.view = PolicyView("shop", publisher, dict, lambda: self.now, lambda: self.now)

    def write(self, number: int) -> None:
        put_document(STATUS, "shop", {"at": number, "models": {}})
        put_document(DECISIONS, "shop", [{"seq": number, "model": "tide"}])

    async def shown(self) -> tuple[Any, Any, float | None]:
        status, decisions = await self.view.status(), await self.view.decisions()
        assert status is not None
        assert status["age_s"] >= 0
        return status["at"], [record["seq"] for record in decisions], self.view.age_s()


async def test_decisions_are_at_most_half_a_second_old(kv: StubKv) -> None:
    view = View()
    view.write(1)
    assert await view.shown() == (1, [1], 0.0)

    view.write(2)
    view.now += 0.5
    assert await view.shown() == (1, [1], 0.5)
    view.now += 0.25
    assert await view.shown() == (2, [2], 0.0)

    kv.fails = RuntimeError("GCS is gone")
    view.now += 30.0
    assert await view.shown() == (2, [2], 30.0)


@pytest.mark.parametrize("document", [7, {}, [{"of": "another version"}]])
async def test_documents_of_another_version_count_as_absent(kv: StubKv, document: Any) -> None:
    put_document(STATUS, "shop", document)
    put_document(DECISIONS, "shop", document)
    view = View().view

    assert (await view.status(), await view.decisions()) == (None, [])
