"""The installed vLLM against the list of what the engine relies on, and the engine in other releases."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError

from serve_app.engine.arguments import _PASSED, vllm_overrides
from serve_app.patches import vllm_compat
from serve_app.settings.tree import ModelSettings
from tools import vllm_releases
from tools.vllm_releases import CALLED, MEMBERS, OPTIONAL, REPLACED, places


def imported(entry: str) -> Any:
    """The class or function that an entry of the list names, imported."""
    if entry.startswith("vllm."):
        module, _, name = entry.rpartition(".")
        return getattr(import_module(module), name)
    name, _, neighbour = entry.partition(":")
    for path in places()[name]:
        try:
            module = import_module(path)
        except ModuleNotFoundError:
            continue
        return getattr(module, neighbour or name)
    raise AssertionError(entry)


def function(entry: str) -> inspect.Signature:
    owner, _, method = entry.rpartition(".")
    found = inspect.signature(getattr(imported(owner), method) if owner else imported(entry))
    return found.replace(
        parameters=[item for item in found.parameters.values() if item.name not in ("self", "cls")]
    )


@pytest.mark.parametrize("name", sorted(places()))
def test_what_the_engine_imports_is_there(name: str) -> None:
    assert imported(name) is not None


@pytest.mark.parametrize("entry", CALLED)
def test_what_the_engine_calls_takes_what_it_is_given(entry: str) -> None:
    function(entry).bind(**dict.fromkeys(CALLED[entry].split()))


@pytest.mark.parametrize("entry", REPLACED)
def test_what_the_engine_replaces_has_the_parameters_of_the_replacement(entry: str) -> None:
    assert list(function(entry).parameters) == REPLACED[entry].split()


@pytest.mark.parametrize("entry", sorted(MEMBERS.keys() | OPTIONAL.keys()))
def test_what_the_engine_reads_is_there(entry: str) -> None:
    owner = imported(entry)
    scopes = [scope for scope in getattr(owner, "__mro__", ()) if scope.__module__.startswith("vllm.")]
    source = "".join(map(inspect.getsource, scopes))
    for name in f"{MEMBERS.get(entry, '')} {OPTIONAL.get(entry, '')}".split():
        assert hasattr(owner, name) or re.search(rf"\n +(self\.)?{name}(:| =)", source), name


def test_every_argument_that_the_engine_sets_is_on_the_list() -> None:
    known = set(f"{MEMBERS['AsyncEngineArgs']} {MEMBERS['make_arg_parser:BaseFrontendArgs']}".split())

    assert set(_PASSED) <= known
    assert set(vllm_overrides(ModelSettings(name="tide", device="cpu", task="embed"))) <= known


def test_the_installed_release_is_checked_and_lacks_nothing() -> None:
    assert vllm_compat.unchecked() == ""
    assert vllm_compat.lacking() == ""


@pytest.mark.parametrize(
    ("release", "named"), [((0, 31), True), ((0, 32), False), ((0, 33), False), ((1, 0), True)]
)
def test_a_release_outside_of_those_that_were_checked_is_named(
    release: tuple[int, int], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_compat, "_RELEASE", release)
    monkeypatch.setattr(vllm_compat, "__version__", "0.99.0")

    assert vllm_compat.unchecked() == named * (
        "vLLM 0.99.0 has not been checked with this engine, which is made for 0.32 and 0.33."
    )


def test_the_next_release_lacks_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_compat, "__version__", "0.33.0")
    monkeypatch.setattr(vllm_compat, "OWN_STREAMS", False)

    assert vllm_compat.lacking() == (
        "vLLM 0.33.0 encodes chat streams itself, which takes more CPU per token, and cannot continue the "
        "streams of a lost engine; the engine's own encoder and continuation are made for 0.32."
    )


def test_what_has_moved_is_found_at_its_older_place(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = ("vllm.nowhere.at_all", "vllm.outputs", "vllm.exceptions")
    monkeypatch.setitem(vllm_compat.MOVED, "VLLMValidationError", newer)

    assert vllm_compat.find("VLLMValidationError") is VLLMValidationError


def test_a_missing_name_is_refused_with_release_and_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vllm_compat.MOVED, "Tide", ("vllm.nowhere", "vllm.outputs"))
    monkeypatch.setattr(vllm_compat, "__version__", "0.19.0")

    with pytest.raises(ImportError) as caught:
        vllm_compat.find("Tide")

    assert str(caught.value) == (
        "vLLM 0.19.0 lacks what the engine needs: Tide in vllm.nowhere or vllm.outputs. "
        "It runs with 0.32 and 0.33."
    )


def test_a_missing_import_of_the_engine_names_the_release() -> None:
    with pytest.raises(
        ImportError, match=r"^vLLM \S+ lacks what the engine needs: .*Tide.* runs with 0\.32 and"
    ):
        with vllm_compat.name_missing_imports():
            from vllm.outputs import Tide  # noqa: F401


def test_another_missing_package_is_no_fault_of_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import tide_that_is_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(vllm_compat.MOVED, "Tide", ("needs_more",))

    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'tide_that_is_not_installed'$"):
        vllm_compat.find("Tide")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'tide_that_is_not_installed'$"):
        with vllm_compat.name_missing_imports():
            import needs_more  # noqa: F401
    assert "needs_more" not in sys.modules


def test_the_list_of_what_is_imported_has_what_has_moved() -> None:
    assert vllm_compat.MOVED.items() <= places().items()
    assert places()["AsyncLLM"] == ("vllm.v1.engine.async_llm",)
    assert vllm_releases.APPLICATION.is_dir()
