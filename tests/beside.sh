#!/usr/bin/env bash
# Run the integration tests, which wait for seven tenths of their time, and beside them, at the lowest priority,
# tests of pure computation: those that no stall can fail. Arguments: their folders.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
nice -n 19 .venv/bin/python -m pytest --color=no "$@" >"$log" 2>&1 &
computing=$!
trap 'kill "$computing" 2>/dev/null; rm -f "$log"' EXIT

.venv/bin/python -m pytest tests/integration
integration=$?
wait "$computing"
computation=$?
echo "== pytest: what ran beside them"
tail -n +2 "$log"
exit $((integration > computation ? integration : computation))
