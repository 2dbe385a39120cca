#!/usr/bin/env bash
# Resolve the lock files: cpu.txt and gpu.txt to serve, with the laboratory, dev.txt for tests on top of
# cpu.txt, checkov.txt for the security scan and moto.txt for the tests' S3 server, which need other versions and
# have environments of their own, pip.txt, and uv.txt, which set-up takes where the package index has no CPU build of torch.
# A version that is locked already is kept where it still fits; uv's own arguments move them:
#   requirements/lock.sh --upgrade                      all of them
#   requirements/lock.sh --upgrade-package starlette    one, for a security fix say
# Needs uv on PATH. The CPU build of torch comes from PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL where one of them is set,
# and else from PyTorch's own index.
set -euo pipefail
cd "$(dirname "$0")/.."
moves=("$@")

resolve() { # lock file, then requirements and extra arguments
    local lock=requirements/$1.txt
    shift
    # Every file of a release is in the lock with its hash: other versions of Python install from it too.
    uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --generate-hashes --no-header --no-annotate --output-file "$lock" "$@" "${moves[@]}" >/dev/null
    echo "$lock: $(grep -c == "$lock") packages"
}

cpu=(pyproject.toml --extra cpu --extra lab --extra kubernetes --override requirements/cpu.overrides.txt)
[ -n "${PIP_FIND_LINKS:-}" ] && cpu+=(--find-links "$PIP_FIND_LINKS")
# PyTorch's index has old releases of other packages too: take the best match of both indexes.
[ -n "${PIP_EXTRA_INDEX_URL:-}" ] &&
    cpu+=(--extra-index-url "$PIP_EXTRA_INDEX_URL" --index-strategy unsafe-best-match)
[ -n "${PIP_FIND_LINKS:-}${PIP_EXTRA_INDEX_URL:-}" ] || cpu+=(--torch-backend cpu)
resolve cpu "${cpu[@]}"
beyond() { # arguments that keep the versions of these lock files, and leave their packages out
    printf -- '--constraints\nrequirements/%s.txt\n' "$@"
    sed -n 's/^\([^ =]*\)==.*/--no-emit-package=\1/p' $(printf 'requirements/%s.txt ' "$@")
}
mapfile -t locked < <(beyond cpu)
resolve dev "${cpu[@]}" --extra dev "${locked[@]}"
resolve gpu pyproject.toml --extra gpu --extra lab --extra kubernetes
resolve checkov requirements/checkov.in --override requirements/checkov.overrides.txt
resolve moto requirements/moto.in
resolve pip requirements/pip.in
resolve uv requirements/uv.in
