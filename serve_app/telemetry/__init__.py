"""Prometheus metrics, exported from every replica through Ray's metrics agents."""
