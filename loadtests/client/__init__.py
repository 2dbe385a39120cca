"""Sends planned requests at their intended times and records each result."""
