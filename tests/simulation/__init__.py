"""Worlds whose time, network, order of steps and faults come from a seed."""
