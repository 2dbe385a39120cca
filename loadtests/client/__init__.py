"""Sends planned requests at their intended times and records what came of each."""
