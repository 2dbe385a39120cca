"""The scaling policy: how many replicas a model needs, and why. Pure, with time as an argument."""
