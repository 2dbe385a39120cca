"""The defaults of every replay, and the bounds of its options."""

from serve_app.settings.knobs import Knobs

KNOBS = Knobs(min_replicas=0, max_replicas=32)
PROFILE = "a100-80gb"
GOAL = 0.99
"""The attainment to reach."""
SEEDS = 3
BUDGET_S = 300.0
"""The seeds per configuration and the seconds of search of `tideserve advise`."""
LONGEST_COLD_START_S = 86_400.0
MOST_REPLICAS = 10_000

OURS, ORACLE, STATIC = "ours", "oracle", "static"
"""Policies beside the laws of the registry: the production policy, the schedule made with hindsight, and the
least static fleet that reaches the goal."""
