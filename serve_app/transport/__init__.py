"""`EngineClient`s that reach engine replicas through Ray Serve."""
