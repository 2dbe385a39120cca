"""Foresight: what the whole trace needs, and when to start and stop replicas for it."""
