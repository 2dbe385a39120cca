from __future__ import annotations

import subprocess
import sys

import pytest

from serve_app.settings import ModelSettings, engine_arguments
from serve_app.settings.engine_arguments import check_engine_args, known_arguments


def check(**engine_args: object) -> list[str]:
    return check_engine_args("m.engine_args", ModelSettings(name="a", engine_args=engine_args))


@pytest.fixture
def with_vllm() -> None:
    if known_arguments() is None:
        pytest.skip("vLLM is not installed")


@pytest.mark.usefixtures("with_vllm")
def test_arguments_of_the_engine_and_of_the_front_end_are_known() -> None:
    assert check(seed=1, block_size=32, disable_log_requests=True, chat_template_content_format="auto") == [
        "m.engine_args.disable_log_requests = True: vLLM has no such argument; "
        "did you mean 'enable_log_requests'?"
    ]


@pytest.mark.usefixtures("with_vllm")
def test_an_unknown_name_comes_with_the_one_that_was_meant() -> None:
    assert check(max_loras_=2) == [
        "m.engine_args.max_loras_ = 2: vLLM has no such argument; did you mean 'max_loras'?"
    ]


@pytest.mark.usefixtures("with_vllm")
def test_a_name_like_no_other_comes_without_a_guess() -> None:
    assert check(zzzzzzzzzz=2) == ["m.engine_args.zzzzzzzzzz = 2: vLLM has no such argument"]


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "dtype",
        "max_num_seqs",
        "tensor_parallel_size",
        "env",
        "served_model_name",
        "runner",
        "convert",
    ],
)
def test_what_our_own_settings_decide_cannot_be_said_twice(name: str) -> None:
    assert check(**{name: "x"}) == [
        f"m.engine_args.{name} = 'x': Tideserve's own settings decide this; set it there"
    ]


def test_without_vllm_unknown_names_are_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_arguments, "known_arguments", lambda: None)

    assert check(zzzzzzzzzz=2) == []
    assert len(check(dtype="auto")) == 1


def test_reading_the_names_imports_neither_vllm_nor_torch_nor_ray() -> None:
    script = (
        "import sys\n"
        "from serve_app.settings import load_settings\n"
        "load_settings({'models': [{'name': 'a', 'engine_args': {'seed': 1}}]})\n"
        "print([name for name in ('vllm', 'torch', 'ray') if name in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
