"""What NVML tells of the GPUs that this process may use."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray._private.thirdparty import pynvml

from serve_app.gpus import GIB, MEMORY_WAIT_S, lacking_memory, read_driver, wait_for_memory

UUIDS = ["GPU-a", "GPU-b"]
GPUS = {
    0: ("NVIDIA H100 80GB HBM3", 79, []),
    1: ("NVIDIA A100-SXM4-40GB", 2, [SimpleNamespace(pid=1 << 30, usedGpuMemory=70 * GIB)]),
}


@pytest.fixture
def _nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_index(index: int) -> int:
        if index not in GPUS:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def by_uuid(uuid: str) -> int:
        if uuid not in UUIDS:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return UUIDS.index(uuid)

    answers = {
        "Init": lambda: None,
        "SystemGetDriverVersion": lambda: "580.65.06",
        "DeviceGetCount": lambda: len(GPUS),
        "DeviceGetHandleByIndex": by_index,
        "DeviceGetHandleByUUID": by_uuid,
        "DeviceGetName": lambda index: GPUS[index][0],
        "DeviceGetMemoryInfo": lambda index: SimpleNamespace(total=80 * GIB, free=GPUS[index][1] * GIB),
        "DeviceGetComputeRunningProcesses": lambda index: GPUS[index][2],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", answer)


@pytest.mark.usefixtures("_nvml")
@pytest.mark.parametrize(
    ("visible", "kinds"),
    [(None, ["H100", "A100"]), ("1", ["A100"]), ("GPU-b,0", ["A100", "H100"]), ("7,0", ["H100"]), ("", [])],
)
def test_only_visible_gpus_are_read(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, kinds: list[str]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    else:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    driver = read_driver()

    assert driver is not None
    assert driver.version == "580.65.06"
    assert [gpu.kind for gpu in driver.gpus] == kinds


@pytest.mark.usefixtures("_nvml")
def test_gpu_without_room_names_the_process_that_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver = read_driver()
    assert driver is not None
    free, full = driver.gpus

    assert free.lacks(0.9) == ""
    assert full.lacks(0.02) == ""
    assert full.lacks(0.9) == (
        "GPU 1 (NVIDIA A100-SXM4-40GB) has 2.0 of 80.0 GiB free, and an engine takes 72.0; "
        f"process {1 << 30} (of another container) holds 70.0 GiB"
    )


@pytest.mark.usefixtures("_nvml")
@pytest.mark.parametrize(
    ("visible", "count", "waits"),
    [("0", 1, False), ("1", 1, True), ("", 2, True), ("", 1, False), ("0,1", 1, False), ("", 4, True)],
)
def test_engine_waits_until_enough_gpus_have_room(
    monkeypatch: pytest.MonkeyPatch, visible: str, count: int, waits: bool
) -> None:
    """GPU 0 has room and GPU 1 has none. A replica with several GPUs is shown none of them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    lacking = lacking_memory(0.9, count)

    assert bool(lacking) is waits
    assert ("holds 70.0 GiB" in lacking) is waits


def test_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)

    assert read_driver() is None
    assert lacking_memory(0.9, 1) == ""


class Wait:
    """A wait for memory that is freed `freed_after_s` after its begin, on a clock of its own."""

    def __init__(self, freed_after_s: float) -> None:
        self.freed_after_s = freed_after_s
        self.now = 1000.0

    def run(self) -> None:
        begin = self.now

        def sleep(seconds: float) -> None:
            self.now += seconds

        wait_for_memory(
            lambda: "" if self.now - begin >= self.freed_after_s else "GPU 0 is full; process 42 holds it",
            lambda: self.now,
            sleep,
        )


@given(st.floats(0, 2 * MEMORY_WAIT_S))
def test_wait_for_memory_is_bounded_and_names_the_holder(freed_after_s: float) -> None:
    wait = Wait(freed_after_s)

    if freed_after_s <= MEMORY_WAIT_S:
        wait.run()
        assert wait.now - 1000.0 <= freed_after_s + 1.0
    else:
        with pytest.raises(RuntimeError, match="after a wait of 300 s GPU 0 is full; process 42 holds it"):
            wait.run()
        assert wait.now - 1000.0 == MEMORY_WAIT_S
