"""Searching the knobs for the cheapest configuration that meets its targets on recorded traffic."""
