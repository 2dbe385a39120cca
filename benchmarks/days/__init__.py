"""Writes days of traffic, for replays in which the hour of the day matters. See README.md."""
