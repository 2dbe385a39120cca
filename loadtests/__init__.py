"""Load tests: a scenario's requests, sent at their times, and what came back of them."""
