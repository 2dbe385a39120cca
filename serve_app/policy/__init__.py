"""How many replicas there should be, and why: pure, with time as an argument."""
