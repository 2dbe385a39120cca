from pathlib import Path
from typing import Any

import pytest
import yaml

from replay.profile import load_profile, load_starting_values, profile_for, profile_names
from serve_app.settings.load import load_settings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import ModelSettings

CONFIG = Path(__file__).parents[2] / "config"
FIELDS = {
    "name": "mine",
    "source": "a test",
    "gpu": "X",
    "step_base_s": 0.01,
    "step_per_sequence_s": 0.0001,
    "step_per_kv_token_s": 0.0,
    "step_per_prefill_token_s": 0.00005,
    "kv_cache_tokens": 100_000,
}


def written(folder: Path, **changed: Any) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump({**FIELDS, **changed}, sort_keys=False))
    return path


def problems(path: Path | str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_profile(path)
    return caught.value.problems


def test_shipped_profiles_have_their_names_and_a_source() -> None:
    derived = {"a100-80gb", "h100", "h200", "l4"}
    assert derived <= set(profile_names())
    for name in profile_names():
        profile = load_profile(name)
        assert profile.name == name
        assert len(profile.source) > 200
        assert (profile.fit_error == 0.0) == (name in derived)  # the others were measured, and fitted


def test_derived_profiles_follow_the_rule_in_their_source() -> None:
    weights, kv_bytes = 16.06e9, 131_072
    for name, bandwidth, flops in (
        ("h100", 3.35e12, 989e12),
        ("h200", 4.8e12, 989e12),
        ("l4", 3e11, 121e12),
    ):
        profile = load_profile(name)
        assert profile.step_base_s == pytest.approx(weights / (0.85 * bandwidth) + 0.001, rel=0.005)
        assert profile.step_per_kv_token_s == pytest.approx(kv_bytes / (0.85 * bandwidth), rel=0.005)
        assert profile.step_per_prefill_token_s == pytest.approx(weights / (0.5 * flops), rel=0.005)


def test_a_fleet_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = written(tmp_path, cold_start_s=[20, 30], warm_node_start_s=[3, 5], warm_nodes=4)

    assert load_profile(path) == load_profile(str(path))
    profile = load_profile(path)
    assert (profile.cold_start_s, profile.warm_node_start_s, profile.warm_nodes) == ((20, 30), (3, 5), 4)


def test_wrong_value_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path, step_base_s=-1, kv_cache_tokens=10, colour="red")

    assert problems(path) == [
        f"{path}:4: step_base_s = -1: input should be greater than 0",
        f"{path}:8: kv_cache_tokens = 10: input should be greater than or equal to 1024",
        f"{path}:9: colour = 'red': no such setting",
    ]


def test_contradicting_values_are_named(tmp_path: Path) -> None:
    path = written(
        tmp_path, cold_start_s=[90, 60], cold_start_phases={"imports": 0.5}, warm_node_start_s=[5, 3]
    )

    assert problems(path) == [
        f"{path}:9: cold_start_s = [90.0, 60.0]: the first must be at most the second",
        f"{path}:14: warm_node_start_s = [5.0, 3.0]: the first must be at most the second",
        f"{path}:12: cold_start_phases: the shares must add up to 1 within 0.01, and make 0.5",
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"- a list\n", ": must be a mapping with the fields of a profile"),
        (b"name: [\n", ":2: not YAML: "),
        (b"name: \xff\n", ": not UTF-8: "),
    ],
)
def test_invalid_profile_file_is_named(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(content)

    assert problems(path)[0].startswith(f"{path}{told}")


@pytest.mark.parametrize(
    ("given", "name", "why"),
    [
        ({"accelerator_type": "A100"}, "a100-80gb", "accelerator_type of m is A100"),
        ({"accelerator_type": "A100-80G"}, "a100-80gb", "accelerator_type of m is A100-80G"),
        ({"accelerator_type": "L4"}, "l4", "accelerator_type of m is L4"),
        ({"accelerator_type": "B200"}, "a100-80gb", "there is none for accelerator_type B200"),
        ({"accelerator_type": None}, "a100-80gb", "there is none for accelerator_type any"),
        ({"device": "cpu"}, "a100-80gb", "m runs on the CPU, so the fallback stands in for a GPU"),
    ],
)
def test_a_configuration_gets_the_profile_of_its_gpu(given: dict[str, Any], name: str, why: str) -> None:
    chosen = profile_for(ModelSettings(name="m", max_num_seqs=96, **given))

    assert chosen.profile.name == name
    assert chosen.profile.max_num_seqs == 96
    assert chosen.why.startswith(f"profile {name}: ")
    assert why in chosen.why


def test_every_gpu_of_a_replica_counts_in_its_profile() -> None:
    chosen = profile_for(ModelSettings(name="m", tensor_parallel_size=4, pipeline_parallel_size=2))

    assert chosen.profile.gpus == 8
    assert "8 GPUs a replica are counted" in chosen.why


def test_the_configurations_that_come_along_find_theirs() -> None:
    document = yaml.safe_load((CONFIG / "serve.a100.yaml").read_text())
    chosen = profile_for(load_settings(document["applications"][0]["args"]))

    assert chosen.profile.name == "a100-80gb"
    assert (chosen.profile.max_num_seqs, chosen.profile.max_num_batched_tokens) == (128, 8192)
    assert chosen.why == (
        "profile a100-80gb: accelerator_type of llama-3.1-8b-instruct is A100; max_num_seqs 128 as "
        "configured; its step time is a 7B or 8B model's in bf16; measure yours with `tideserve capacity`"
    )


def test_limit_out_of_a_profiles_bounds_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_num_seqs = 5000: input should be less than"):
        profile_for(ModelSettings(name="m", max_num_seqs=5000))


LAW = {name: value for name, value in FIELDS.items() if name.startswith("step_")}


def test_fleet_file_gives_its_starting_values(tmp_path: Path) -> None:
    assert load_starting_values(written(tmp_path)) == {**LAW, "kv_cache_tokens": 100_000}
    measured = load_starting_values(written(tmp_path, cold_start_s=[22, 24]))
    assert measured["cold_start_s"] == [22.0, 24.0]


def test_unusable_starting_value_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, step_per_sequence_s=2.0)

    with pytest.raises(SettingsError) as caught:
        load_starting_values(path)
    assert caught.value.problems == [
        f"{path}:5: step_per_sequence_s = 2.0: input should be less than or equal to 1"
    ]
