"""What the cluster can still supply: Ray's resources, and in Kubernetes why GPU pods wait."""
