"""Ray's ways with an application's policy, against Ray's own application state."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ray.serve._private.constants import CONTROL_LOOP_INTERVAL_S

from replay.ray_semantics import CONTROL_LOOP_S, Context, apply
from serve_app.app import ENGINE_INTERVAL_S, open_bounds
from serve_app.controller import serve_policy
from serve_app.controller.serve_policy import ServePolicy
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import INGRESS
from serve_app.wire.served_models import ServedModel
from tests.policy.fake_application import Clock, FakeApplication, FakeMailbox, FakeMetrics

KNOBS = Knobs(
    min_replicas=0,
    max_replicas=10,
    queue_target_per_replica=8,
    headroom=0,
    downscale_delay_s=1,
    downscale_to_zero_delay_s=2,
    forecast=False,
)


class Fickle(ServePolicy):
    """Changes its mind at random, in the same way wherever it is asked the same."""

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        decision, state = super().decide(model, snapshot, state, now)
        target = random.Random(f"{model.name} {now:.3f}").choice([0, 0, 1, 2, 7])
        return replace(decision, target=target), state


class Blunt(Fickle):
    """Answers as a policy would that leaves Ray's rules to Ray, below zero too, and may say nothing."""

    def __call__(self, contexts: Mapping[Any, Any]) -> tuple[dict[Any, int], dict[Any, dict[str, Any]]]:
        wishes = {}
        for key, context in contexts.items():
            draw = random.Random(f"{context.deployment_name} {context.current_num_replicas} {self._turn()}")
            if draw.random() < 0.5:
                wishes[key] = draw.choice([-1, 0, 0, 1, 2, 5, 12_000])
            elif draw.random() < 0.3:
                context.target_num_replicas = 9  # and forgets to say so
        return wishes, {}

    def _turn(self) -> int:
        self._errors += 1
        return self._errors


class Twin:
    """A second instance of the policy of `app`, called without Ray."""

    def __init__(self, app: FakeApplication, policy: type[ServePolicy]) -> None:
        self.app = app
        self.targets = dict(app.targets)
        self.policy = policy(lambda: app.clock.now, FakeMailbox(app.mailbox.inbox.served), FakeMetrics())

    def tick(self) -> dict[str, int]:
        contexts = {}
        for name, target in self.targets.items():
            state = self.app.state._deployment_autoscaling_states[self.app.id(name)]
            replicas = self.app._running[name]
            contexts[name] = Context(
                name,
                "tideserve",
                target,
                len(replicas),
                replicas,
                state._get_raw_custom_metrics(),
                state.get_total_num_requests(),
                state.get_num_replicas_lower_bound(),
                state.get_num_replicas_upper_bound(),
            )
        answer, _ = self.policy(contexts)
        self.targets = apply(contexts, answer)
        return self.targets


@pytest.mark.parametrize("policy", [ServePolicy, Fickle, Blunt])
@pytest.mark.parametrize("seed", range(2))
def test_targets_are_rays(policy: type[ServePolicy], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(serve_policy, "SteadyTime", lambda: clock.time)
    app = FakeApplication(clock, {"a": KNOBS, "b": KNOBS}, policy=policy, targets={"a": 2})
    twin = Twin(app, policy)
    draw = random.Random(seed)
    seen = set()
    waiting = 0.0
    for turn in range(200):
        if turn % 20 == 0:
            waiting = draw.choice([0.0, 0.0, 10.0, 40.0, 70.0])
        load(app, draw, waiting)
        clock.now += draw.choice([0.1, 0.3, 0.5])
        expected = twin.tick()
        assert app.tick(0.0) == expected
        seen.add(tuple(expected.values()))
        for name, target in expected.items():
            if draw.random() < 0.3:
                app.run(name, min(target, 12))

    assert len(seen) >= 3


def load(app: FakeApplication, draw: random.Random, waiting: float) -> None:
    """Requests come or go, in Ray's handles and in what replicas report."""
    if draw.random() < 0.3:
        for model in ("a", "b"):
            app.queue_in_ray(model, draw.choice([0.0, 0.0, 3.0]))
    held = 0 if app._running["Engine-a"] else waiting
    app.reports(a={"held_requests": held, "oldest_held_s": 1.0 if held else 0.0})
    for model in ("a", "b"):
        if app._running[f"Engine-{model}"]:
            app.engine(model, waiting_requests=waiting, waiting_tokens=waiting)


def test_the_settings_it_rests_on_are_those_of_the_application() -> None:
    settings = open_bounds(0, ENGINE_INTERVAL_S)
    context = Context(INGRESS, "app", 1, 1, [], {})

    assert CONTROL_LOOP_S == CONTROL_LOOP_INTERVAL_S
    assert settings["upscale_delay_s"] == settings["downscale_delay_s"] == 0
    assert not {"upscaling_factor", "downscaling_factor", "smoothing_factor"} & set(settings)
    assert context.capacity_adjusted_min_replicas == settings["min_replicas"]
    assert context.capacity_adjusted_max_replicas == settings["max_replicas"]
