import asyncio
import logging
import threading
from typing import Any

import pytest

from serve_app.ingress import knob_publisher as publisher_module
from serve_app.ingress.knob_publisher import KnobPublisher
from serve_app.settings import ModelSettings, SettingsError
from serve_app.settings.knobs import IngressKnobs, Knobs, LiveKnobs
from serve_app.wire.documents import DECISIONS, KNOBS, STATUS, put_document, read_document
from serve_app.wire.served_models import ServedApplication, read_served
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv, stored

MODELS = {
    "tide": ModelSettings(name="tide", accelerator_type="H100"),
    "org/embed": ModelSettings(name="org/embed", device="cpu", cpus_per_replica=0.5),
}
INVALID = {"autoscaling": {"tide": {"max_replicas": 0}}}
WRONG = "autoscaling['tide'].max_replicas = 0: input should be greater than or equal to 1"


class Clock:
    """Stands in for `time` in the knob store."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, kv: StubKv) -> Clock:
    made = Clock()
    monkeypatch.setattr(publisher_module, "time", made)
    return made


class Replica:
    """An ingress replica's knobs, and where it keeps them."""

    def __init__(self, models: dict[str, ModelSettings] = MODELS, app: str = "shop") -> None:
        self.live = LiveKnobs(dict.fromkeys(models, Knobs()))
        self.store = KnobPublisher(app, models, self.live, {"CPU": 0.5})


@pytest.fixture
def replica(clock: Clock) -> Replica:
    return Replica()


def told() -> ServedApplication:
    """What the policy reads."""
    return read_document(KNOBS, "shop", read_served)


def set_to(**knobs: Any) -> dict[str, Any]:
    return {"autoscaling": {"tide": knobs}}


async def test_the_policy_reads_models_knobs_and_resources(replica: Replica, clock: Clock) -> None:
    await replica.store.apply({"autoscaling": {"tide": {"max_replicas": 8}}, "ingress": {"max_replicas": 2}})

    served = told()
    assert list(served.models) == ["Engine-tide", "Engine-org-embed"]
    tide, embed = served.models.values()
    assert (tide.name, tide.knobs) == ("tide", Knobs(max_replicas=8))
    assert tide.resources == {"CPU": 1.0, "GPU": 1.0, "accelerator_type:H100": 0.001}
    assert tide.identity == "embedded on 1 x H100"
    assert (embed.name, embed.knobs, embed.resources) == ("org/embed", Knobs(), {"CPU": 0.5})
    assert served.ingress == IngressKnobs(max_replicas=2)
    assert served.ingress_resources == {"CPU": 0.5}
    assert served.rejected == ""
    assert stored(KNOBS, "shop")["at"] == clock.now


async def test_omitted_knobs_return_to_their_defaults(
    replica: Replica,
) -> None:
    await replica.store.apply(set_to(max_replicas=8, headroom=2))
    await replica.store.apply(set_to(max_replicas=4))

    assert told().models["Engine-tide"].knobs == Knobs(max_replicas=4)
    assert replica.live.of("tide") == Knobs(max_replicas=4)


async def test_invalid_knobs_at_the_first_start_are_an_error(replica: Replica, kv: StubKv) -> None:
    with pytest.raises(SettingsError) as caught:
        await replica.store.apply(INVALID)

    assert caught.value.problems == [WRONG]
    assert kv.kept == {}


async def test_later_invalid_knobs_are_rejected_and_shown(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    await replica.store.apply(set_to(max_replicas=8))

    with caplog.at_level(logging.ERROR, "ray.serve"):
        await replica.store.apply(INVALID)

    assert replica.live.of("tide") == Knobs(max_replicas=8)
    assert told().models["Engine-tide"].knobs == Knobs(max_replicas=8)
    assert told().rejected == WRONG
    assert replica.store.knobs()["rejected"] == WRONG
    assert replica.store.knobs()["models"]["tide"]["max_replicas"] == 8
    assert caplog.messages == [f"knobs rejected, the previous knobs stay in force: {WRONG}"]


async def test_one_invalid_knob_keeps_out_all_that_came_with_it(replica: Replica) -> None:
    await replica.store.apply(set_to(max_replicas=8))

    await replica.store.apply(
        {"autoscaling": {"tide": {"headroom": 2}, "nobody": {}}, "ingress": {"max_replicas": 9}}
    )

    assert replica.live.of("tide") == Knobs(max_replicas=8)
    assert replica.live.ingress == IngressKnobs()
    assert "autoscaling['nobody']: no such model" in replica.store.knobs()["rejected"]


async def test_valid_knobs_after_invalid_ones_leave_nothing_rejected(replica: Replica) -> None:
    await replica.store.apply({})
    await replica.store.apply(INVALID)

    await replica.store.apply(set_to(max_replicas=3))

    assert replica.store.knobs()["rejected"] == told().rejected == ""
    assert told().models["Engine-tide"].knobs == Knobs(max_replicas=3)


async def test_a_new_replica_adopts_the_knobs_of_its_peers(
    replica: Replica,
) -> None:
    """Or else no ingress replica could be replaced until somebody mends the file."""
    await replica.store.apply({"autoscaling": {"tide": {"max_replicas": 8}}, "ingress": {"max_replicas": 2}})
    await replica.store.apply(INVALID)

    late = Replica()
    await late.store.apply(INVALID)

    assert late.live.of("tide") == Knobs(max_replicas=8)
    assert late.live.ingress == IngressKnobs(max_replicas=2)
    assert late.store.knobs()["rejected"] == told().rejected == WRONG


async def test_knobs_of_other_models_are_not_adopted(replica: Replica) -> None:
    """New models and invalid knobs at once: what was in force says nothing of them."""
    await replica.store.apply({})
    other = Replica({**MODELS, "more": ModelSettings(name="more")})

    with pytest.raises(SettingsError):
        await other.store.apply(INVALID)


async def status_of(replica: Any) -> dict[str, Any]:
    """What the policy wrote, without its age."""
    status = await replica.store.status()
    assert status.pop("age_s") >= 0
    return dict(status)


async def test_decisions_are_at_most_half_a_second_old(replica: Replica, clock: Clock) -> None:
    put_document(STATUS, "shop", {"at": 1, "models": {}})
    put_document(DECISIONS, "shop", [{"seq": 1, "model": "tide"}])
    assert await status_of(replica) == {"at": 1, "models": {}}
    assert await replica.store.decisions() == [{"seq": 1, "model": "tide"}]

    put_document(STATUS, "shop", {"at": 2, "models": {}})
    put_document(DECISIONS, "shop", [{"seq": 2, "model": "tide"}])
    clock.now += 0.5
    assert await status_of(replica) == {"at": 1, "models": {}}
    assert await replica.store.decisions() == [{"seq": 1, "model": "tide"}]
    assert replica.store.age_s() == 0.5

    clock.now += 0.25
    assert await status_of(replica) == {"at": 2, "models": {}}
    assert await replica.store.decisions() == [{"seq": 2, "model": "tide"}]
    assert replica.store.age_s() == 0.0


async def test_without_the_store_the_last_reading_is_shown(
    replica: Replica, clock: Clock, kv: StubKv
) -> None:
    put_document(STATUS, "shop", {"at": 1, "models": {}})
    put_document(DECISIONS, "shop", [{"seq": 1, "model": "tide"}])
    await replica.store.status()
    await replica.store.decisions()
    kv.fails = RuntimeError("GCS is gone")
    clock.now += 30.0

    assert await status_of(replica) == {"at": 1, "models": {}}
    assert await replica.store.decisions() == [{"seq": 1, "model": "tide"}]
    assert replica.store.age_s() == 30.0


@pytest.mark.parametrize("document", [7, {}, [{"of": "another version"}]])
async def test_documents_of_another_version_are_as_good_as_none(replica: Replica, document: Any) -> None:
    put_document(STATUS, "shop", document)
    put_document(DECISIONS, "shop", document)

    assert await replica.store.status() is None
    assert await replica.store.decisions() == []


async def test_knobs_are_published_once_the_store_answers(
    replica: Replica, kv: StubKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GCS that does not answer must not hold up the event loop, where Ray hands knobs over."""
    monkeypatch.setattr(publisher_module, "_PUBLISH_WAIT_S", 0.01)
    answers = threading.Event()
    put = kv._internal_kv_put
    threads: list[threading.Thread] = []

    def put_slowly(key: str, value: bytes, *, overwrite: bool, namespace: str) -> None:
        threads.append(threading.current_thread())
        assert answers.wait(LIMIT_S)
        put(key, value, overwrite=overwrite, namespace=namespace)

    monkeypatch.setattr(kv, "_internal_kv_put", put_slowly)
    await replica.store.apply(set_to(max_replicas=8))
    await replica.store.apply(set_to(max_replicas=9))
    assert replica.live.of("tide").max_replicas == 9
    assert kv.kept == {}

    answers.set()
    await replica.store.apply(set_to(max_replicas=7))
    for thread in threads:
        await asyncio.to_thread(thread.join, LIMIT_S)

    assert told().models["Engine-tide"].knobs == Knobs(max_replicas=7)
    assert threading.current_thread() not in threads
    assert len(threads) <= 3


async def test_failed_write_is_retried_and_logged_once(
    replica: Replica, kv: StubKv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher_module, "_RETRY_S", 0.0)
    monkeypatch.setattr(publisher_module, "_PUBLISH_WAIT_S", LIMIT_S)
    put, failures = kv._internal_kv_put, iter(range(3))

    def put_at_last(key: str, value: bytes, *, overwrite: bool, namespace: str) -> None:
        if next(failures, None) is not None:
            raise RuntimeError("GCS is gone")
        put(key, value, overwrite=overwrite, namespace=namespace)

    monkeypatch.setattr(kv, "_internal_kv_put", put_at_last)
    with caplog.at_level(logging.ERROR, "ray.serve"):
        await replica.store.apply(set_to(max_replicas=8))

    assert told().models["Engine-tide"].knobs == Knobs(max_replicas=8)
    assert caplog.messages == ["the knobs of shop could not be published; trying again"]
