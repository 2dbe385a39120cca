import logging
import threading
from typing import Any

import pytest

from serve_app.ingress.knob_applier import KnobApplier
from serve_app.settings.knobs import IngressKnobs, Knobs, LiveKnobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.wire.documents import KNOBS, read_document
from serve_app.wire.served_models import ServedApplication, read_served
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv
from tests.timing import until

MODELS = {
    "tide": ModelSettings(name="tide", accelerator_type="H100"),
    "org/embed": ModelSettings(name="org/embed", device="cpu", cpus_per_replica=0.5),
}
INVALID = {"autoscaling": {"tide": {"max_replicas": 0}}}
WRONG = "autoscaling['tide'].max_replicas = 0: input should be greater than or equal to 1"


class Replica:
    """An ingress replica's knobs."""

    def __init__(self, models: dict[str, ModelSettings] = MODELS, **waits: float) -> None:
        self.live = LiveKnobs(dict.fromkeys(models, Knobs()))
        self.publisher = KnobApplier("shop", AppSettings(models=tuple(models.values())), self.live, **waits)
        self.apply = self.publisher.apply

    @property
    def rejected(self) -> Any:
        return self.publisher.document()["rejected"]


@pytest.fixture
def replica(kv: StubKv) -> Replica:
    return Replica()


def published() -> ServedApplication:
    """Return the document that the policy reads."""
    found = read_document(KNOBS, "shop", read_served)
    assert found is not None
    return found


def published_knobs() -> Knobs:
    return published().models["Engine-tide"].knobs


def set_to(**knobs: Any) -> dict[str, Any]:
    return {"autoscaling": {"tide": knobs}}


async def test_the_policy_reads_models_knobs_and_resources(replica: Replica) -> None:
    await replica.apply({**set_to(max_replicas=8), "ingress": {"max_replicas": 2}})

    served = published()
    assert list(served.models) == ["Engine-tide", "Engine-org-embed"]
    tide, embed = served.models.values()
    assert (tide.name, tide.knobs) == ("tide", Knobs(max_replicas=8))
    assert tide.resources == {"CPU": 1.0, "GPU": 1.0, "accelerator_type:H100": 0.001}
    assert tide.identity == "embedded on 1 x H100"
    assert (embed.name, embed.knobs, embed.resources) == ("org/embed", Knobs(), {"CPU": 0.5})
    assert (served.ingress, served.ingress_resources) == (IngressKnobs(max_replicas=2), {"CPU": 0.5})
    assert served.rejected == ""


async def test_omitted_knobs_return_to_their_defaults(replica: Replica) -> None:
    await replica.apply(set_to(max_replicas=8, headroom=2))
    await replica.apply(set_to(max_replicas=4))

    assert published_knobs() == replica.live.of("tide") == Knobs(max_replicas=4)


async def test_invalid_knobs_at_the_first_start_are_an_error(replica: Replica, kv: StubKv) -> None:
    with pytest.raises(SettingsError) as caught:
        await replica.apply(INVALID)

    assert caught.value.problems == [WRONG]
    assert kv.kept == {}


async def test_later_invalid_knobs_are_rejected_and_shown(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    await replica.apply(set_to(max_replicas=8))

    with caplog.at_level(logging.ERROR, "ray.serve"):
        await replica.apply({**INVALID, "ingress": {"max_replicas": 9}})

    assert published_knobs() == replica.live.of("tide") == Knobs(max_replicas=8)
    assert replica.live.ingress == IngressKnobs()  # all knobs of a change, or none
    assert published().rejected == replica.rejected == WRONG
    assert replica.publisher.document()["models"]["tide"]["max_replicas"] == 8
    assert caplog.messages == [f"knobs rejected, the previous knobs stay in force: {WRONG}"]

    await replica.apply(set_to(max_replicas=3))
    assert replica.rejected == published().rejected == ""
    assert published_knobs() == Knobs(max_replicas=3)


async def test_a_new_replica_adopts_the_knobs_of_its_peers(replica: Replica) -> None:
    """Without this, no ingress replica could be replaced until the knobs are corrected."""
    await replica.apply({**set_to(max_replicas=8), "ingress": {"max_replicas": 2}})
    await replica.apply(INVALID)

    late = Replica()
    await late.apply(INVALID)

    assert (late.live.of("tide"), late.live.ingress) == (Knobs(max_replicas=8), IngressKnobs(max_replicas=2))
    assert late.rejected == published().rejected == WRONG

    with pytest.raises(SettingsError):  # the peers' knobs do not have this model
        await Replica({**MODELS, "more": ModelSettings(name="more")}).apply(INVALID)


class FailingKv(StubKv):
    """A store whose writes wait for `answers`, and fail for the first `failures` times."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.failures = 0
        self.threads: list[threading.Thread] = []

    def _internal_kv_put(self, key: str, value: bytes, *, overwrite: bool, namespace: str) -> bool:
        self.threads.append(threading.current_thread())
        assert self.answers.wait(LIMIT_S)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("GCS is gone")
        return super()._internal_kv_put(key, value, overwrite=overwrite, namespace=namespace)


@pytest.fixture
def failing_kv(kv: StubKv, monkeypatch: pytest.MonkeyPatch) -> FailingKv:
    store = FailingKv()
    monkeypatch.setattr("serve_app.wire.documents.internal_kv", store)
    return store


async def test_knobs_are_published_once_the_store_answers(failing_kv: FailingKv) -> None:
    """A GCS that does not answer must not delay the event loop, in which Ray passes knobs."""
    replica = Replica(wait_s=0.01)
    await replica.apply(set_to(max_replicas=8))
    await replica.apply(set_to(max_replicas=9))
    assert (replica.live.of("tide").max_replicas, failing_kv.kept) == (9, {})

    failing_kv.answers.set()
    await replica.apply(set_to(max_replicas=7))
    await until(lambda: published_knobs() == Knobs(max_replicas=7))

    assert threading.current_thread() not in failing_kv.threads
    assert len(failing_kv.threads) <= 3


async def test_failed_write_is_retried_and_logged_once(
    failing_kv: FailingKv, caplog: pytest.LogCaptureFixture
) -> None:
    failing_kv.answers.set()
    failing_kv.failures = 3
    with caplog.at_level(logging.ERROR, "ray.serve"):
        await Replica(wait_s=LIMIT_S, retry_s=0.0).apply(set_to(max_replicas=8))

    assert published_knobs() == Knobs(max_replicas=8)
    assert caplog.messages == ["the knobs of shop could not be published; trying again"]
