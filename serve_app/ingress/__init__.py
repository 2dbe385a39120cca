"""The ingress: requests are held, an engine replica is picked, and its bytes are relayed."""
