"""Load tests: the requests of a scenario, sent at their times, and figures of the answers."""
