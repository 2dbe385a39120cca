"""A server with the page, over stub engines and a made-up fleet."""

import math
import time
from collections.abc import Mapping
from typing import Any

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.autoscaling import ChangedKnobs
from serve_app.api.endpoints import ApiModel
from serve_app.api.engine_client import Traffic
from serve_app.api.fleet_events import FleetEvents
from serve_app.api.http_api import create_app
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import HttpSettings
from tests.api.server import StubObserver
from tests.stub_engine import StubEngine

REASON = "demand: 14 requests/s arrive, and one replica serves 6.1 requests/s, so 3 replicas are needed."


def model_state(**changes: Any) -> dict[str, Any]:
    return {
        "ready": 2, "starting": 0, "pending": 0, "draining": 0, "target": 2, "wanted": 2, "state": "up",
        "phase": None, "reason": None, "lost": {}, "mode": "act", "cold_start_s": 9.2, "starts": [],
        **changes,
    }  # fmt: skip


STARTING = {
    "replica": "q7x2m1ab",
    "phase": "weights_and_kv_cache",
    "phase_s": 1.4,
    "durations_s": {"process": 0.6, "imports": 2.1, "configuration": 0.4},
    "expected_s": {
        "process": 0.6, "imports": 2.0, "configuration": 0.5, "weights_and_kv_cache": 3.2,
        "serving_layer": 0.4, "warm_up": 1.1, "data_plane": 0.1,
    },
    "eta_s": 3.4,
}  # fmt: skip


def record(seq: int, at: float, model: str, old: int, new: int, reason: str = REASON) -> dict[str, Any]:
    return {
        "seq": seq, "at": at, "deployment": f"Engine-{model}", "model": model, "kind": "change",
        "mode": "act",
        "old_target": old, "new_target": new, "wanted": new, "ready": old, "binding": "demand",
        "reason": reason,
        "counterfactual": "With less than 11.4 requests/s for 37 s, 2 replicas would be enough.",
        "terms": [
            {"name": "demand", "replicas": new, "why": "14 requests/s arrive; one replica serves 6.1."},
            {"name": "queue", "replicas": 1, "why": "3 requests wait; one replica may have 8."},
        ],
        "clamps": [], "signals": {}, "ages_s": {}, "notes": [],
    }  # fmt: skip


def sample(at: float, phase: float, ready: int = 2, target: int = 2) -> dict[str, Any]:
    wave = 1 + math.sin(phase)
    return {
        "ready": ready, "target": target, "wanted": target, "starting": target - ready, "pending": 0,
        "draining": 0, "lost": 0, "running_requests standard": round(24 * wave),
        "running_requests interactive": round(9 * wave),
        "running_requests background": 6, "waiting_requests standard": round(4 * wave), "held_requests": 0,
        "completion_tokens_per_second": 900 * wave, "prompt_tokens_per_second": 2400 * wave,
        "cached_share": 0.41,
        "ttft_p50_s": 0.06 + 0.02 * wave, "ttft_p95_s": 0.11 + 0.06 * wave, "itl_p50_s": 0.012,
        "itl_p95_s": 0.018 + 0.004 * wave,
    }  # fmt: skip


class FakeFleet:
    """A `FleetView` of what a test puts there, and the knobs that clients have set."""

    def __init__(self, *names: str) -> None:
        now = time.time()
        names = names or ("tideserve-tiny", "org/embed")
        self.knobs = {name: Knobs(max_replicas=4) for name in names}
        first, *others = names
        self.models = {first: model_state(target=3, wanted=3, starting=1, starts=[STARTING])}
        self.models |= {
            name: model_state(ready=0, target=0, wanted=0, state="idle_at_zero") for name in others
        }
        self.records = [record(1, now - 600, first, 1, 2), record(2, now - 40, first, 2, 3)]
        grown = [(now - 5 * (179 - number), number) for number in range(180)]
        self.samples = [
            {
                "at": at,
                "models": {
                    first: sample(
                        at,
                        number / 20,
                        2 if number > 60 else 1,
                        3 if number > 171 else 2 if number > 58 else 1,
                    ),
                    **{name: {**sample(at, -math.pi / 2, 0, 0), "cached_share": None} for name in others},
                },
            }
            for at, number in grown
        ]
        self.set: list[tuple[str, Mapping[str, Any], str]] = []
        self.fails: SettingsError | None = None
        self.fresh: list[dict[str, Any]] = []
        """New records."""
        self.policy = {"reports": True, "silent_s": None, "errors": 0}
        self.asked = 0
        """How often the state was built."""
        self.watched = False
        """Whether anybody listened when the state was last built."""

    async def parts(self, watched: bool) -> dict[str, Any]:
        self.asked += 1
        self.watched = watched
        parts = {"models": self.models, "knobs": self._knobs(), "policy": self.policy}
        return {**parts, "decisions": self.fresh}

    def history(self) -> dict[str, Any]:
        names = list(self.models)
        return {
            "samples": self.samples, "decisions": self.records, "currency": "USD",
            "prices": {name: 2.49 if name == names[0] else None for name in names},
        }  # fmt: skip

    def _knobs(self) -> dict[str, Any]:
        models = {name: knobs.model_dump(mode="json") for name, knobs in self.knobs.items()}
        return {"models": models, "ingress": IngressKnobs().model_dump(mode="json"), "rejected": ""}

    async def set_knobs(self, scope: str, knobs: Mapping[str, Any], sender: str) -> ChangedKnobs:
        if self.fails is not None:
            raise self.fails
        self.set.append((scope, knobs, sender))
        given = {**self.knobs[scope].model_dump(mode="json"), **knobs}
        self.knobs[scope] = Knobs.model_validate({k: given[k] for k in given if given[k] != "default"})
        return ChangedKnobs([f"{scope}.{name}: {value}" for name, value in knobs.items()], in_force=True)


class PageServer:
    """The application with the page. `draining` ends all streams of events."""

    def __init__(
        self, fleet: FakeFleet, engine: StubEngine, keys: ApiKeyFile | None = None, on: str = "127.0.0.1"
    ) -> None:
        self.fleet = fleet
        self.draining = False
        self.events = FleetEvents(fleet, keys, lambda: self.draining)
        models = [ApiModel(name, 1_700_000_000, engine, 2048, Traffic()) for name in fleet.models]
        http = HttpSettings()
        page = (self.events, fleet.set_knobs)
        self.app = create_app(models, StubObserver(), http, api_keys=keys, listens_on=on, page=page)
