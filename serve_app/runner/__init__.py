"""The batch runner: it sends the lines of open batches to ingress replicas and writes their answers."""
