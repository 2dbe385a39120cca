import re
import subprocess
import sys
from importlib import resources
from typing import Any

import pytest

from serve_app.settings import load
from serve_app.settings.knobs import Knobs
from serve_app.settings.load import (
    KNOBS,
    PROFILES,
    REFUSED,
    apply_profile,
    check_engine_args,
    knob_defaults,
    known_arguments,
    load_settings,
)
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import ModelSettings

_MORE_PROCESSES = "data_parallel|nnodes|node_rank|master|elastic|context_parallel|device_ids"


@pytest.mark.parametrize("args", [None, [], "models", 5])
def test_arguments_that_are_not_a_mapping_are_refused(args: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(args)

    assert caught.value.problems == [f"args = {args!r}: must be a mapping with at least `models`"]


def test_settings_not_given_have_their_defaults() -> None:
    settings = load_settings({"models": [{"name": "a", "engine_args": {"seed": 7, "block_size": 32}}]})

    model = settings.models[0]
    assert model.engine_args == {"seed": 7, "block_size": 32}
    assert (model.model, model.device, model.max_num_seqs) == ("embedded", "gpu", 256)
    assert settings.http.max_body_bytes == 8 << 20


def test_pass_through_arguments_are_checked_in_every_model() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(
            {
                "models": [
                    {"name": "a", "engine_args": {"seed": 1}},
                    {"name": "b", "engine_args": {"dtype": "auto"}},
                    {"name": "c", "engine_args": {"model": "x"}},
                ]
            }
        )

    assert [line.partition(" ")[0] for line in caught.value.problems] == [
        "models[1].engine_args.dtype",
        "models[2].engine_args.model",
    ]


def check(**engine_args: object) -> list[str]:
    return check_engine_args("m.engine_args", ModelSettings(name="a", engine_args=engine_args))


@pytest.fixture
def with_vllm() -> None:
    if known_arguments() is None:
        pytest.skip("vLLM is not installed")


@pytest.mark.usefixtures("with_vllm")
def test_unknown_arguments_come_with_a_guess() -> None:
    assert check(zzzzzzzzzz=2) == ["m.engine_args.zzzzzzzzzz = 2: vLLM has no such argument"]
    assert check(seed=1, block_size=32, disable_log_requests=True, chat_template_content_format="auto") == [
        "m.engine_args.disable_log_requests = True: vLLM has no such argument; "
        "did you mean 'enable_log_requests'?"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "model", "dtype", "max_num_seqs", "tensor_parallel_size", "env", "served_model_name", "runner",
        "convert",
    ],
)  # fmt: skip
def test_an_argument_that_a_setting_decides_is_refused(name: str) -> None:
    assert check(**{name: "x"}) == [
        f"m.engine_args.{name} = 'x': Tideserve's own settings decide this; set it there"
    ]


@pytest.mark.usefixtures("with_vllm")
def test_each_parallel_argument_of_vllm_is_placed_or_refused() -> None:
    known = known_arguments()
    assert known is not None
    more_processes = {name for name in known if re.search(_MORE_PROCESSES, name)}
    taken = {"decode_context_parallel_size"}  # divides the GPUs of tensor parallelism

    assert more_processes - taken <= set(REFUSED) <= known
    for name in REFUSED:
        (problem,) = check(**{name: 2})
        assert problem.startswith(f"m.engine_args.{name} = 2: not supported; ")


@pytest.mark.parametrize(
    ("model", "argument", "problem"),
    [
        ({"tensor_parallel_size": 4}, {"decode_context_parallel_size": 2}, ""),
        ({"tensor_parallel_size": 4}, {"enable_expert_parallel": True, "enable_eplb": True}, ""),
        ({"tensor_parallel_size": 4}, {"numa_bind": True}, ""),
        (
            {"tensor_parallel_size": 4},
            {"decode_context_parallel_size": 3},
            "decode_context_parallel_size = 3: must divide tensor_parallel_size = 4",
        ),
        ({}, {"decode_context_parallel_size": 0}, "decode_context_parallel_size = 0: must divide tensor_par"),
        (
            {"tensor_parallel_size": 2},
            {"distributed_executor_backend": "ray"},
            "distributed_executor_backend = 'ray': placement_group_strategy = 'STRICT_PACK' decides this on "
            "GPUs",
        ),
        ({"device": "cpu"}, {"distributed_executor_backend": "mp"}, ""),
        (
            {"pipeline_parallel_size": 2, "placement_group_strategy": "PACK"},
            {"numa_bind": True},
            "numa_bind = True: binds no worker of a replica over several nodes: placement_group_strategy = "
            "'PACK' must be 'STRICT_PACK'",
        ),
    ],
)
def test_engine_arguments_fit_the_placement_of_workers(
    model: dict[str, Any], argument: dict[str, Any], problem: str
) -> None:
    problems = check_engine_args(
        "m", ModelSettings.model_validate({"name": "a", "engine_args": argument} | model)
    )

    assert [line.startswith(f"m.{problem}") for line in problems] == ([True] if problem else [])


def test_without_vllm_unknown_names_are_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "known_arguments", lambda: None)

    assert check(zzzzzzzzzz=2) == []
    assert len(check(dtype="auto")) == 1


def test_loading_settings_imports_neither_vllm_nor_torch_nor_ray() -> None:
    script = (
        "import sys\n"
        "from serve_app.settings.load import load_settings\n"
        "load_settings({'models': [{'name': 'a', 'engine_args': {'seed': 1}}]})\n"
        "print([name for name in ('vllm', 'torch', 'ray') if name in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_profiles_are_the_files_of_the_package() -> None:
    files = {file.name for file in resources.files("serve_app.settings.profiles").iterdir()}

    assert {name.removesuffix(".yaml") for name in files if name.endswith(".yaml")} == set(PROFILES)


@pytest.mark.parametrize("name", ["fastest", "", "Balanced", 3, ["balanced"], "../profiles/balanced"])
def test_an_unknown_profile_is_refused_with_the_known_names(name: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"profile": name, "models": [{"name": "a"}]})

    assert caught.value.problems == [
        f"profile = {name!r}: must be one of lowest-latency, balanced, lowest-cost"
    ]


def test_settings_of_a_model_win_over_its_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "read_profile", lambda name: {"engine_args": {"seed": 1, "block_size": 32}})

    def under(engine_args: object) -> object:
        (model,) = apply_profile({"profile": "x", "models": [{"engine_args": engine_args}]})["models"]
        return model["engine_args"]

    assert under({"seed": 7}) == {"seed": 7, "block_size": 32}
    assert under(None) is None  # for the check that follows to refuse


def test_a_profile_leaves_the_arguments_as_they_were() -> None:
    args = {"profile": "balanced", "models": [{"name": "a", "env": {"A": "1"}}]}
    merged = apply_profile(args)
    assert "profile" not in merged
    assert KNOBS not in merged["models"][0]
    assert args == {"profile": "balanced", "models": [{"name": "a", "env": {"A": "1"}}]}
    assert apply_profile({"models": [{"name": "a"}]}) == {"models": [{"name": "a"}]}
    with pytest.raises(SettingsError, match=r"models\[0\] = 3"):
        load_settings({"profile": "balanced", "models": [3]})


def test_knobs_of_a_profile_are_defaults() -> None:
    assert knob_defaults({"models": [{"name": "a"}, {"name": "org/b"}]}) == {"a": Knobs(), "org/b": Knobs()}
    found = knob_defaults({"profile": "lowest-cost", "models": [{"name": "a"}, {"name": "b"}]})
    assert found["a"] == found["b"]
    assert (found["a"].min_replicas, found["a"].max_replicas) == (0, 1)
    assert found["a"].keep_alive_interval_s == Knobs().keep_alive_interval_s


def test_profiles_trade_latency_for_cost_in_their_order() -> None:
    """Small batches, tight targets and spare replicas first; large batches, slack and zero when idle last."""
    models = [{"name": "a"}, {"name": "b", "max_num_seqs": 7}]
    settings = [load_settings({"profile": name, "models": models}).models for name in PROFILES]
    knobs = [knob_defaults({"profile": name, "models": models})["a"] for name in PROFILES]
    assert {own.max_num_seqs for _, own in settings} == {7}
    model = [found for found, _ in settings]
    for records, name, sign in (
        (model, "max_num_seqs", 1),
        (model, "max_num_batched_tokens", 1),
        (knobs, "ttft_target_s", 1),
        (knobs, "itl_target_s", 1),
        (knobs, "queue_target_per_replica", 1),
        (knobs, "upscale_delay_s", 1),
        (knobs, "headroom", -1),
        (knobs, "downscale_to_zero_delay_s", -1),
    ):
        first, second, third = (sign * getattr(record, name) for record in records)
        assert first < second < third, name
    assert [each.downscale_delay_s for each in knobs] == [300, None, 30]
    assert [each.min_replicas for each in knobs] == [1, 1, 0]
    assert knobs[1] == Knobs()
