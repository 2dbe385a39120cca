"""Prometheus metrics of every replica, exported through Ray's metrics agents, and the request log."""
