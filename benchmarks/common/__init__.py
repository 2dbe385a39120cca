"""Tools that several benchmarks share: server processes, their resources, replays in parallel, tables."""
