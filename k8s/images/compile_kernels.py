"""Compile FlashInfer's sampler into FOLDER, where FlashInfer looks for kernels before it compiles them.

    FLASHINFER_CUDA_ARCH_LIST="8.0 9.0a" python compile_kernels.py FOLDER

Neither a GPU nor a driver is needed. The kernels have code for every architecture of the list. On a GPU of
another one FlashInfer would not compile them again, and would fail.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Compile, and copy the library to its place."""
    with tempfile.TemporaryDirectory() as folder:
        # A machine without a driver has no library to link with. The node's own takes its place by its name.
        empty, name = Path(folder, "libcuda.so"), "-Wl,-soname,libcuda.so.1"
        command = ["c++", "-shared", name, "-x", "c++", "-o", empty, "/dev/null"]
        subprocess.run(command, check=True)  # noqa: S603
        os.environ |= {"FLASHINFER_WORKSPACE_BASE": folder, "FLASHINFER_EXTRA_LDFLAGS": f"-L{folder}"}
        from flashinfer.jit.sampling import gen_sampling_module  # noqa: PLC0415  it reads the environment

        spec = gen_sampling_module()
        spec.build(verbose=True)
        place = Path(sys.argv[1], spec.name, f"{spec.name}.so")
        place.parent.mkdir(parents=True)
        shutil.copy(spec.jit_library_path, place)


if __name__ == "__main__":
    main()
