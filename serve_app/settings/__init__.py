"""The typed settings and knobs of every configuration file."""
