"""The defaults of every replay, and the bounds of its options. Needs no numpy, for the command line."""

from serve_app.settings.knobs import Knobs

KNOBS = Knobs(min_replicas=0, max_replicas=32)
PROFILE = "a100-80gb"
GOAL = 0.99
"""The attainment to reach."""
SEEDS = 3
"""Seeds per configuration of `tideserve advise`."""
BUDGET_S = 300.0
"""Seconds of its search."""
LONGEST_COLD_START_S = 86_400.0
MOST_REPLICAS = 10_000
MOST_START_FAILURES = 0.9

OURS, ORACLE, STATIC = "ours", "oracle", "static"
"""Policies beside the baselines: the production policy, the schedule made with hindsight, and the least
static fleet that reaches the goal."""
