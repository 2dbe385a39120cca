"""The policy inside Ray Serve's controller: its adapter to Ray."""
