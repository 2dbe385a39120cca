import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed import distributed_c10d

from serve_app.patches.torch import one_gloo_device


def gloo_threads() -> int:
    """How many threads of this process are gloo's."""
    names = [Path(f"/proc/self/task/{thread}/comm").read_text() for thread in os.listdir("/proc/self/task")]
    return sum(name.startswith("gloo_tcp") for name in names)


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[list[distributed.ProcessGroup]]:
    """Three process groups beside the first, all of this process alone."""
    with one_gloo_device():
        distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
        )
        made = [distributed.new_group([0], backend="gloo") for _ in range(3)]
    yield made
    distributed.destroy_process_group()


def test_all_process_groups_share_one_thread(groups: list[distributed.ProcessGroup]) -> None:
    deadline = time.monotonic() + 10.0
    while not gloo_threads() and time.monotonic() < deadline:
        time.sleep(0.005)  # a thread names itself, and on a busy machine not at once

    for group in groups:
        distributed.barrier(group=group)
    assert gloo_threads() == 1


def test_each_process_group_works(groups: list[distributed.ProcessGroup]) -> None:
    for number, group in enumerate(groups):
        tensor = torch.full((2,), float(number))
        distributed.all_reduce(tensor, group=group)
        distributed.barrier(group=group)
        gathered = [None]
        distributed.all_gather_object(gathered, {"number": number}, group=group)
        assert (tensor.tolist(), gathered) == ([number, number], [{"number": number}])


def test_torch_is_as_before_afterwards(groups: list[distributed.ProcessGroup]) -> None:
    assert distributed_c10d.ProcessGroupGloo.__mro__[0].__name__ == "ProcessGroupGloo"


MAY_USE_AMX = """
import ctypes
from serve_app.patches.torch import permit_amx
permit_amx()
allowed = ctypes.c_uint64()
ARCH_PRCTL, ARCH_GET_XCOMP_PERM, TILE_DATA = 158, 0x1022, 18
assert ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_GET_XCOMP_PERM, ctypes.byref(allowed)) == 0
assert allowed.value >> TILE_DATA & 1
"""


@pytest.mark.skipif("amx_tile" not in Path("/proc/cpuinfo").read_text(), reason="this CPU has no AMX")
def test_a_process_may_use_amx() -> None:
    subprocess.run([sys.executable, "-c", MAY_USE_AMX], check=True)
