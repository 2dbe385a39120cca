"""The three profiles, one YAML overlay each."""
