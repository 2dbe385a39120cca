"""The cost of Tideserve's own parts with up to 1,000 engine replicas, without engines."""
