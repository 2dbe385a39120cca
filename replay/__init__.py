"""Replay: what a policy would have done, and cost, on traffic that was recorded."""
