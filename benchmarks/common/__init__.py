"""What several benchmarks need: servers as processes, their resources, and tables."""
