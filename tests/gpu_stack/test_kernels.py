"""FlashInfer compiles and links kernels with the locked packages alone."""

from pathlib import Path

from tests.gpu_stack.conftest import Fork, Stack

BUILD = """
import json
from flashinfer.jit.page import gen_page_module
spec = gen_page_module()
spec.build()
print(json.dumps(str(spec.jit_library_path)))
"""


def test_kernels_compile_and_link_with_the_locked_toolkit(stack: Stack, fork: Fork, tmp_path: Path) -> None:
    built = fork(BUILD, FLASHINFER_CUDA_ARCH_LIST="9.0a", FLASHINFER_WORKSPACE_BASE=str(tmp_path))

    assert Path(built).is_relative_to(tmp_path)
    assert Path(built).stat().st_size > 10_000
