"""The simulated fleet: engine replicas, the queue of the ingress, and what happens to every request."""
