"""The ingress: it queues requests, picks an engine replica, and relays its bytes."""
