"""Scaling laws that need nothing of a peer: static fleets and timetables, and the registry of all."""
