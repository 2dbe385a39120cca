import subprocess
import sys
from importlib import resources

import pytest

from serve_app.settings import ModelSettings, SettingsError, knob_defaults, load, load_settings
from serve_app.settings.knobs import Knobs
from serve_app.settings.load import (
    KNOBS,
    PROFILES,
    apply_profile,
    check_engine_args,
    known_arguments,
    read_profile,
)


@pytest.mark.parametrize("args", [None, [], "models", 5])
def test_arguments_that_are_no_mapping_are_refused(args: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(args)

    assert caught.value.problems == [f"args = {args!r}: must be a mapping with at least `models`"]


def test_what_is_not_given_takes_its_default() -> None:
    settings = load_settings({"models": [{"name": "a", "engine_args": {"seed": 7, "block_size": 32}}]})

    model = settings.models[0]
    assert model.engine_args == {"seed": 7, "block_size": 32}
    assert (model.model, model.device, model.max_num_seqs) == ("embedded", "gpu", 256)
    assert settings.http.max_body_bytes == 8 << 20
    assert settings.ingress.data_plane == "relay"


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


@pytest.mark.parametrize("key", ["cpus_per_replica", "drain_timeout_s", "gpu_memory_utilization"])
def test_infinity_is_not_a_setting(key: str) -> None:
    model = {"name": "m", "device": "cpu", key: float("inf")}
    with pytest.raises(SettingsError, match=rf"models\[0\]\.{key} = inf"):
        load_settings({"models": [model]})


def test_replica_counts_of_an_older_configuration_come_with_where_they_are_now() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"models": [{"name": "a", "scaling": {"max_replicas": 3}}, {"name": "b"}]})

    (line,) = caught.value.problems
    assert line.startswith("models[0] = {'name': 'a', 'scaling': {'max_replicas': 3}}: scaling: ")
    assert "user_config" in line


def check(**engine_args: object) -> list[str]:
    return check_engine_args("m.engine_args", ModelSettings(name="a", engine_args=engine_args))


@pytest.fixture
def with_vllm() -> None:
    if known_arguments() is None:
        pytest.skip("vLLM is not installed")


@pytest.mark.usefixtures("with_vllm")
def test_arguments_of_the_engine_and_of_the_front_end_are_known_and_others_come_with_a_guess() -> None:
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
def test_what_our_own_settings_decide_cannot_be_said_twice(name: str) -> None:
    assert check(**{name: "x"}) == [
        f"m.engine_args.{name} = 'x': Tideserve's own settings decide this; set it there"
    ]


def test_without_vllm_unknown_names_are_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "known_arguments", lambda: None)

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


def test_every_profile_that_is_shipped_can_be_named_and_the_other_way_round() -> None:
    files = {file.name for file in resources.files("serve_app.settings.profiles").iterdir()}

    assert {name.removesuffix(".yaml") for name in files if name.endswith(".yaml")} == set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_holds_valid_model_settings_and_knobs_beside_them(name: str) -> None:
    overlay = read_profile(name)
    knobs = overlay.pop(KNOBS)

    assert ModelSettings.model_validate({"name": "a", "device": "cpu", **overlay}).name == "a"
    assert isinstance(knobs, dict)


def test_the_profiles_trade_latency_for_cost_in_their_order() -> None:
    """Small batches and chunks first, large ones last; what a model sets itself wins."""
    models = [{"name": "a"}, {"name": "b", "max_num_seqs": 7}]
    settings = load_settings({"profile": "lowest-latency", "models": models})
    assert [model.max_num_seqs for model in settings.models] == [32, 7]
    latency, balanced, cost = (
        load_settings({"profile": name, "models": [{"name": "a"}]}).models[0] for name in PROFILES
    )

    assert latency.max_num_seqs < balanced.max_num_seqs < cost.max_num_seqs
    assert latency.max_num_batched_tokens is not None
    assert balanced.max_num_batched_tokens is not None
    assert cost.max_num_batched_tokens is not None
    assert latency.max_num_batched_tokens < balanced.max_num_batched_tokens < cost.max_num_batched_tokens


@pytest.mark.parametrize("name", ["fastest", "", "Balanced", 3, ["balanced"], "../profiles/balanced"])
def test_an_unknown_profile_is_refused_with_the_names_there_are(name: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"profile": name, "models": [{"name": "a"}]})

    assert caught.value.problems == [
        f"profile = {name!r}: must be one of lowest-latency, balanced, lowest-cost"
    ]


def test_what_a_model_sets_itself_wins() -> None:
    own = {"name": "a", "max_num_seqs": 1, "engine_args": {"seed": 7}}

    (model,) = apply_profile({"profile": "lowest-cost", "models": [own]})["models"]

    assert model == {
        "name": "a",
        "max_num_seqs": 1,
        "engine_args": {"seed": 7},
        "max_num_batched_tokens": 16384,  # the profile's, as are the last two
        "enable_prefix_caching": True,
        "gpu_memory_utilization": 0.95,
    }


def test_what_a_model_sets_itself_wins_at_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "read_profile", lambda name: {"engine_args": {"seed": 1, "block_size": 32}})

    def under(engine_args: object) -> object:
        (model,) = apply_profile({"profile": "x", "models": [{"engine_args": engine_args}]})["models"]
        return model["engine_args"]

    assert under({"seed": 7}) == {"seed": 7, "block_size": 32}
    assert under(None) is None  # for the check that follows to refuse


def test_the_profile_is_gone_once_applied_and_the_arguments_are_left_as_they_were() -> None:
    args = {"profile": "balanced", "models": [{"name": "a", "env": {"A": "1"}}]}

    merged = apply_profile(args)

    assert "profile" not in merged
    assert KNOBS not in merged["models"][0]
    assert args == {"profile": "balanced", "models": [{"name": "a", "env": {"A": "1"}}]}
    assert apply_profile({"models": [{"name": "a"}]}) == {"models": [{"name": "a"}]}


def test_entries_that_are_no_models_are_left_for_the_check_that_names_them() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"profile": "balanced", "models": [3]})

    assert [line.partition(":")[0] for line in caught.value.problems] == ["models[0] = 3"]


def of_profile(name: str) -> Knobs:
    return knob_defaults({"profile": name, "models": [{"name": "a"}]})["a"]


def test_without_a_profile_every_model_has_the_general_defaults() -> None:
    found = knob_defaults({"models": [{"name": "a"}, {"name": "org/b"}]})

    assert found == {"a": Knobs(), "org/b": Knobs()}
    assert (Knobs().min_replicas, Knobs().max_replicas) == (1, 1)
    assert of_profile("balanced") == Knobs()


def test_what_a_profile_says_of_knobs_is_the_default_of_every_model() -> None:
    found = knob_defaults({"profile": "lowest-cost", "models": [{"name": "a"}, {"name": "b"}]})

    assert found["a"] == found["b"]
    assert (found["a"].min_replicas, found["a"].max_replicas) == (0, 1)
    assert found["a"].queue_target_per_replica == 32
    assert found["a"].keep_alive_interval_s == Knobs().keep_alive_interval_s  # of which it says nothing


def test_the_knobs_of_the_profiles_trade_latency_for_cost_in_their_order() -> None:
    """Tight targets, early and spare replicas first; slack, late ones, and zero when idle last."""
    latency, balanced, cost = (of_profile(name) for name in PROFILES)

    for rising in ("ttft_target_s", "itl_target_s", "queue_target_per_replica", "upscale_delay_s"):
        assert getattr(latency, rising) < getattr(balanced, rising) < getattr(cost, rising), rising
    assert [knobs.downscale_delay_s for knobs in (latency, balanced, cost)] == [300, None, 30]
    for falling in ("headroom", "downscale_to_zero_delay_s"):
        assert getattr(latency, falling) > getattr(balanced, falling) > getattr(cost, falling), falling
    assert [knobs.min_replicas for knobs in (latency, balanced, cost)] == [1, 1, 0]
