import pytest

from serve_app.controller import serve_policy
from tests.policy.fake_application import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that a `ServePolicy` goes by."""
    clock = Clock()
    monkeypatch.setattr(serve_policy, "SteadyTime", lambda: clock.time)
    monkeypatch.setattr(serve_policy, "time", clock)
    return clock
