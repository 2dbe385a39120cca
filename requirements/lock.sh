#!/usr/bin/env bash
# Resolve the lock files anew: cpu.txt and gpu.txt to serve, dev.txt to test, on top of either, and
# checkov.txt for the security scan, which needs other versions and has an environment of its own.
# Needs uv on PATH. The CPU build of torch must be reachable, as the README says for set-up.
set -euo pipefail
cd "$(dirname "$0")/.."

resolve() { # output, then requirements and extra arguments
    local output=$1
    shift
    uv pip compile --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --no-header --no-annotate --upgrade --quiet "$@" | grep -v "sys_platform == 'never'" >"$output"
    echo "$output: $(wc -l <"$output") packages"
}

cpu=(pyproject.toml --extra cpu --extra kubernetes --override requirements/cpu.overrides.txt)
[ -n "${PIP_FIND_LINKS:-}" ] && cpu+=(--find-links "$PIP_FIND_LINKS")
resolve requirements/cpu.txt "${cpu[@]}"
resolve requirements/all.tmp "${cpu[@]}" --extra dev --constraints requirements/cpu.txt
comm -13 <(sort requirements/cpu.txt) <(sort requirements/all.tmp) >requirements/dev.txt
rm requirements/all.tmp
resolve requirements/gpu.txt pyproject.toml --extra gpu --extra kubernetes
resolve requirements/checkov.txt requirements/checkov.in --override requirements/checkov.overrides.txt
