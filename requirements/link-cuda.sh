#!/usr/bin/env bash
# Give the CUDA toolkit in a virtual environment the names that FlashInfer links with. The wheels leave them out.
#   requirements/link-cuda.sh VENV
set -euo pipefail
toolkit=$(echo "$1"/lib/python3.*/site-packages/nvidia/cu13)
ln -sfn lib "$toolkit/lib64"
ln -sf libcudart.so.13 "$toolkit/lib/libcudart.so"
# The driver's library has the name libcuda.so only where a package for developers is installed.
driver=$(PATH=$PATH:/sbin ldconfig -p | awk '/libcuda\.so\.1 .*x86-64/ {print $NF; exit}')
if [ -n "$driver" ]; then
    mkdir -p "$toolkit/lib/stubs"
    ln -sf "$driver" "$toolkit/lib/stubs/libcuda.so"
fi
