"""Fleets found by knowing the whole trace: the least static fleet, and a schedule of starts and stops."""
