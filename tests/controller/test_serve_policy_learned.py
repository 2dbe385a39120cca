"""What the policy has learned, across policies and across models behind one name."""

import logging
from dataclasses import asdict, replace

import pytest

from serve_app.controller.cold_starts import ColdStarts, StartUp
from serve_app.controller.document_exchange import Deployment, Inbox, Learned
from serve_app.policy.state import FORGOTTEN_AFTER_S, KEPT_REMOVED, Memory, PolicyState
from serve_app.settings.identity import identity_number
from serve_app.wire.signals import ENGINE_IDENTITY, EngineSignals
from tests.policy.build import NOW
from tests.policy.fake_application import KNOBS, Clock, FakeApplication


def is_now(app: FakeApplication, model: str, identity: str) -> None:
    """What the ingress says once an operator has changed the model behind a name."""
    served = app.mailbox.inbox.served
    assert served is not None
    name = f"Engine-{model}"
    models = {**served.models, name: replace(served.models[name], identity=identity)}
    app.mailbox.inbox = replace(app.mailbox.inbox, served=replace(served, models=models))


def work(app: FakeApplication, identity: str, step_s: float) -> None:
    """Have the replica of a, which is `identity`, take steps of so many seconds for half a minute."""
    for _ in range(30):
        passed = app.clock.now - NOW
        app.reports(a={"arrivals_total": 4.0 * passed, "arrived_bytes_total": 4e3 * passed})
        said = EngineSignals(running_requests=4.0, steps=50.0, step_s=step_s, step_batch=4.0)
        said = replace(said, finished_requests_total=4.0 * passed, kv_cache_tokens=2e5)
        app.report("Engine-a", {**asdict(said), ENGINE_IDENTITY: identity_number(identity)})
        app.tick()
        app.tick()


def state_of(app: FakeApplication) -> PolicyState:
    return app.policy.memories["Engine-a"].state


def test_another_model_behind_a_name_learns_its_own_speed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, targets={"a": 1})
    is_now(app, "a", "a 7B")
    work(app, "a 7B", 0.02)
    before = state_of(app)
    assert before.service.steps > 0

    is_now(app, "a", "a 70B")
    with caplog.at_level(logging.WARNING, "ray.serve"):
        work(app, "a 7B", 0.02)  # the former replica serves on while the new ones load

    note = "The model is now 'a 70B'. Nothing learned of 'a 7B' is used."
    assert state_of(app).service == PolicyState().service
    assert state_of(app).kv_cache_tokens == 0
    assert state_of(app).demand.buckets[:5] == before.demand.buckets[:5]
    assert caplog.messages.count(f"autoscaling of Engine-a: {note}") == 1
    assert [note in record["notes"] for record in app.records("a")].count(True) == 1
    assert app.mailbox.outbox.status["models"]["Engine-a"]["identity"] == "a 70B"

    work(app, "a 70B", 0.08)
    assert state_of(app).service.step_time().decode_s(4.0, 0.0) == pytest.approx(0.08, rel=0.1)


def test_starts_count_only_for_replicas_of_the_same_identity(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS})
    starts = (StartUp("r0", {"weights": 30.0}, False, "a 7B"), StartUp("r1", {"weights": 9.0}, False, "a 1B"))
    app.startup("a", Deployment(cold_starts=ColdStarts(starts)))
    told = []
    for identity in ("a 7B", "a 70B", "a 1B"):
        is_now(app, "a", identity)
        app.tick()
        told.append(app.mailbox.outbox.status["models"]["Engine-a"]["cold_node_start_s"])

    assert told == [30.0, None, 9.0]


def test_policy_continues_with_the_memory_of_an_earlier_policy(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS})
    learned = Learned({"Engine-a": Memory(PolicyState(learned_headroom=0.9))}, ({"seq": 41},))
    left = replace(app.mailbox.inbox, learned=learned)
    app.mailbox.inbox = Inbox()
    app.tick()
    assert (app.mailbox.outbox.decisions, app.mailbox.outbox.memories) == ([], None)

    app.mailbox.inbox = left
    app.tick()

    assert [record["seq"] for record in app.mailbox.outbox.decisions] == [41, 42]
    assert app.policy.memories["Engine-a"].state.learned_headroom == 0.9


def only(app: FakeApplication, *models: str) -> None:
    """What the ingress says once all other models have been removed or renamed."""
    served = app.mailbox.inbox.served
    assert served is not None
    kept = {name: model for name, model in served.models.items() if model.name in models}
    app.mailbox.inbox = replace(app.mailbox.inbox, served=replace(served, models=kept))


def remembers(app: FakeApplication) -> set[str]:
    app.tick()
    return set(app.mailbox.outbox.memories or ())


def test_renamed_models_are_remembered_for_a_day(clock: Clock) -> None:
    """Ray makes a new policy at each rename, which finds what all those before it have left."""
    app = FakeApplication(clock, {"a": KNOBS})
    renamed = {f"Engine-{i}": Memory(PolicyState(last_at=NOW - 60.0 * i)) for i in range(50)}
    app.mailbox.inbox = replace(app.mailbox.inbox, learned=Learned(renamed))

    assert remembers(app) == {"Engine-a", *(f"Engine-{i}" for i in range(KEPT_REMOVED))}

    clock.now += FORGOTTEN_AFTER_S - 60.0 * 5
    assert remembers(app) == {"Engine-a", *(f"Engine-{i}" for i in range(5))}

    clock.now += 60.0 * 5
    assert remembers(app) == {"Engine-a"}


def test_removed_model_is_forgotten_after_a_day(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS, "b": KNOBS})
    app.tick()
    assert app.mailbox.outbox.status["models"].keys() == {"Engine-a", "Engine-b"}

    only(app, "a")
    clock.now += 1
    assert remembers(app) == {"Engine-a", "Engine-b"}
    assert app.mailbox.outbox.status["models"].keys() == {"Engine-a"}
    assert app.metrics.withdrawn == ["b"]

    clock.now += FORGOTTEN_AFTER_S
    assert remembers(app) == {"Engine-a"}
