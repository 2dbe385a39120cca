#!/usr/bin/env bash
# Create a virtual environment, and install a set of packages with the laboratory and the `tideserve` command into it:
#   requirements/install.sh PYTHON cpu .venv
#   requirements/install.sh PYTHON gpu .venv-gpu
# The two sets exclude each other, so each has an environment of its own. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3.11} set=${2:-cpu} venv=${3:-.venv}
lock=requirements/$set.txt

fail() {
    echo "tideserve set-up: $*" >&2
    exit 1
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "no usable Python; install Python 3.11 or 3.12, or name one: make PYTHON=/path/to/python"
case $version in
3.11 | 3.12) ;;
*) fail "$python is Python $version; Tideserve needs 3.11 or 3.12: make PYTHON=/path/to/python" ;;
esac

if [ ! -x "$venv/bin/pip" ]; then
    echo "== creating $venv with Python $version"
    "$python" -m venv "$venv" || fail "cannot create a virtual environment; on Debian: apt install python3-venv"
fi
if [ "$set" = cpu ]; then
    cost="about 600 MB to download the first time, 2 minutes from a cache"
else
    cost="about 4 GB to download the first time, 8.3 GB on the disk, 10 minutes from a cache"
fi
echo "== installing $(grep -c == "$lock") locked packages ($cost)"
pip=("$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile)
locked=("${pip[@]}" --require-hashes -r)
# Python 3.11 comes with pip 23, which takes twice as long, most of it over the lists of versions.
"${locked[@]}" requirements/pip.txt
torch() { awk '/^[a-z]/ {torch = /^torch==/} torch' "$lock"; }
others() { awk '/^[a-z]/ {torch = /^torch==/} !torch' "$lock"; }
# Beside torch, which is a third of all bytes: pip unpacks on one core.
"${locked[@]}" <(others) & others=$!
trap 'kill "$others" 2>/dev/null || true' EXIT
# The CPU build by its full version and its hashes: a CUDA build is never installed in its place.
if ! refusal=$("${locked[@]}" <(torch) 2>&1); then
    [ "$set" = cpu ] || fail "$refusal"
    echo "== the configured package index has no CPU build of torch: taking it from PyTorch's own (about 200 MB)"
    # uv knows the address of PyTorch's index for the CPU and asks no other index for torch.
    "${locked[@]}" requirements/uv.txt &&
        "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --torch-backend cpu --no-deps \
            --require-hashes -r <(torch) ||
        fail "the locked CPU build of torch could not be installed. pip, with the configured package index, said:
$refusal
uv, with PyTorch's own index, said what is above. Without access to that index, set PIP_EXTRA_INDEX_URL to a mirror of \
it, or PIP_FIND_LINKS to a folder that holds the wheel."
fi
wait "$others"
trap - EXIT
if [ "$set" = gpu ]; then
    requirements/link-cuda.sh "$venv"
fi
# Byte code on all cores at once: pip would take a minute for it on one. Two fifths are left out that are hardly ever
# imported here. Some packages come with files for other versions of Python, which cannot be compiled.
unused='/kubernetes/aio/|/kubernetes/client/api/(?!core_v1)[a-z]|/transformers/models/(?!auto/)[^/]+/'
unused+='|/vllm/(model_executor/)?models/|/ray/(data|llm|rllib|train|tune)/|/sympy/physics/|/numba/cuda/'
unused+='|/site-packages/.+/(tests|testing|benchmarks|examples)/'
"$venv/bin/python" -m compileall -q -j 0 -x "$unused" "$venv"/lib/python3.*/site-packages >/dev/null 2>&1 || true
echo "== installing the tideserve command"
# setuptools warns of every editable installation.
PYTHONWARNINGS=ignore::UserWarning "${pip[@]}" --no-build-isolation --editable .
